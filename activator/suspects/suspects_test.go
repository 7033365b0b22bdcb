package suspects

import (
	"testing"
	"time"
)

// The table of suspects is bounded, prefers those of two crashes, and forgets.
func TestSuspectsAreBounded(t *testing.T) {
	var s Table[int]
	now := time.Unix(1000, 0)
	for i := range 100 {
		s.Crashed(i, 1, false, now)
		if v := s.Crashed(i, 1, false, now); v.Crashes != 1 {
			t.Fatal("a crash is counted twice", v)
		}
		if v := s.Crashed(i, 2, false, now); v.Crashes != CrashesToRunAlone {
			t.Fatal(v)
		}
	}
	for i := range 3 * maxTable {
		s.Crashed(1000+i, 1, false, now.Add(time.Minute))
	}
	if n := s.count.Load(); n != maxTable || len(s.byPrint) != maxTable {
		t.Fatal(n)
	}
	for i := range 100 {
		if v := s.Find(i, now); v.Crashes != CrashesToRunAlone {
			t.Fatal(i, v)
		}
	}
	if v := s.Crashed(1, 3, true, now); v.Crashes != CrashesToRefuse {
		t.Error(v)
	}
	s.Acquit(2)
	if v := s.Find(2, now); v.Crashes != 0 {
		t.Error(v)
	}
	if v := s.Find(3, now.Add(Time)); v.Crashes != 0 {
		t.Error("it is remembered for too long")
	}
	s.Find(0, now.Add(Time+2*time.Minute))
	if n := s.count.Load(); n != 0 {
		t.Errorf("%d are kept", n)
	}
	if v := s.Crashed(1, 3, false, now.Add(time.Hour)); v.Crashes != 1 {
		t.Error("a crash is counted with one an hour ago", v)
	}
}
