package testkit

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestWatch: beside four threads for each processor the reference is slower than alone, and
// a watch that runs for an instant has measured something too.
func TestWatch(t *testing.T) {
	w := StartWatch(t)
	if took, alone := w.Stop(); took > 10*time.Second || alone < 1 {
		t.Errorf("%v, slowdown %f", took, alone)
	}
	var stop atomic.Bool
	defer stop.Store(true)
	for range 4 * runtime.GOMAXPROCS(0) {
		go func() {
			runtime.LockOSThread()
			for !stop.Load() {
			}
		}()
	}
	w = StartWatch(t)
	<-time.After(time.Second)
	if _, beside := w.Stop(); beside < 2 && runtime.GOOS == "linux" {
		t.Errorf("slowdown %f beside four threads for each processor", beside)
	}
	if _, again := w.Stop(); again < 1 {
		t.Error(again)
	}
}
