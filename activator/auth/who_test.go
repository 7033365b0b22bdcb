package auth

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

var t0 = time.Unix(1_000_000, 0)

func newStore(t *testing.T) (*KeyStore, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, path
}

func TestKeysLiveInTheFile(t *testing.T) {
	b, path := newStore(t)
	if b.Any() {
		t.Fatal("a new book is empty")
	}
	s, k, err := b.Create("red", "laptop", false)
	if err != nil {
		t.Fatal(err)
	}
	s2, k2, err := b.Create("blue", "", true)
	if err != nil || !b.Any() {
		t.Fatal(err)
	}
	for _, b := range []*KeyStore{b, reopen(t, path)} {
		if id, ok := b.Lookup(s); !ok || id != (Identity{k.ID, "red", false}) {
			t.Fatalf("%+v %v", id, ok)
		}
		if id, ok := b.Lookup(s2); !ok || !id.Admin || id.Team != "blue" {
			t.Fatalf("%+v %v", id, ok)
		}
		for _, wrong := range []string{"", s + "x", s[:len(s)-1], strings.ToUpper(s), Prefix, strings.Repeat("a", 1000)} {
			if _, ok := b.Lookup(wrong); ok {
				t.Errorf("%q is no key", wrong)
			}
		}
		if len(b.List("red")) != 1 || len(b.List("")) != 2 || len(b.List("green")) != 0 {
			t.Fatal("list")
		}
	}
	data, _ := os.ReadFile(path)
	if strings.Contains(string(data), s) || strings.Contains(string(data), strings.TrimPrefix(s, Prefix)) {
		t.Fatal("the secret lies in the file")
	}
	for _, f := range []string{path, path + ".key"} {
		if info, _ := os.Stat(f); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v", f, info.Mode())
		}
	}
	if left, _ := filepath.Glob(path + ".*.tmp"); len(left) != 0 {
		t.Fatal("left behind:", left)
	}
	if err := b.Delete(k.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(k2.ID + "x"); !errors.Is(err, ErrNoKey) {
		t.Fatal(err)
	}
	if _, ok := b.Lookup(s); ok {
		t.Fatal("a deleted key ends at once")
	}
	if _, ok := reopen(t, path).Lookup(s); ok {
		t.Fatal("and stays deleted")
	}
}

func reopen(t *testing.T, path string) *KeyStore {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBadBooks(t *testing.T) {
	b, path := newStore(t)
	if _, _, err := b.Create("Not A Label", "", false); err == nil {
		t.Error("team must be a label")
	}
	if _, _, err := b.Create("red", "a\nb", false); err == nil {
		t.Error("control characters in a name")
	}
	if _, _, err := b.Create("red", "", false); err != nil {
		t.Fatal(err)
	}
	os.Remove(path + ".key")
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), ".key is missing") {
		t.Error("keys without their HMAC key:", err)
	}
	for _, bad := range []string{"{", `{"keys":[{"id":"a","team":"x","hash":"zz"}]}`} {
		os.WriteFile(path, []byte(bad), 0o600)
		if _, err := Open(path); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// A key that cannot be written does not exist.
func TestCreateNeedsTheDisk(t *testing.T) {
	b, path := newStore(t)
	os.RemoveAll(filepath.Dir(path))
	os.WriteFile(filepath.Dir(path), nil, 0o600) // a file where the folder was
	if _, _, err := b.Create("red", "", false); err == nil || b.Any() {
		t.Fatal("a key that is not on disk must not work")
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	a, err := AdminToken(dir)
	if err != nil || len(a) < 40 {
		t.Fatal(a, err)
	}
	if again, _ := AdminToken(dir); again != a {
		t.Fatal("made once")
	}
	j, _ := JoinToken(dir)
	if j == a {
		t.Fatal("two tokens")
	}
	b, _ := newStore(t)
	b.Trust(a)
	if id, ok := b.Lookup(a); !ok || !id.Admin || b.Any() || len(b.List("")) != 0 {
		t.Fatal("the admin token is no key", id, ok)
	}
	if _, _, err := b.Create("red", "", false); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Lookup(a); !ok {
		t.Fatal("making a key locks nobody out")
	}
	os.Chmod(filepath.Join(dir, "join-token"), 0o644)
	JoinToken(dir)
	if info, _ := os.Stat(filepath.Join(dir, "join-token")); info.Mode().Perm() != 0o600 {
		t.Error("mode of a token that others could read")
	}
	os.WriteFile(filepath.Join(dir, "join-token"), []byte("short"), 0o600)
	if _, err := JoinToken(dir); err == nil {
		t.Error("no secret")
	}
}

func TestBearer(t *testing.T) {
	for in, want := range map[string]string{"Bearer x": "x", "bearer  y ": "y", "Basic x": "", "Bearer": "", "": "", "Bearerx": ""} {
		if got := Bearer(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func newTeam(name string, l functions.Limits) []functions.Team {
	return []functions.Team{{Metadata: functions.Metadata{Name: name}, Spec: functions.TeamSpec{Limits: l}}}
}

func TestLimits(t *testing.T) {
	var l Limits
	if _, r := l.Admit("free", t0); r != nil {
		t.Fatal("no limit, no refusal")
	}
	l.SetTeams(newTeam("red", functions.Limits{Concurrent: 2, RequestsPerMinute: 6, TokensPerMinute: 100, ColdStartsPerHour: 2}))
	a, r := l.Admit("red", t0)
	b, _ := l.Admit("red", t0)
	if r != nil || !a.NeedsUsage() {
		t.Fatal(r)
	}
	if _, r = l.Admit("red", t0); r == nil || r.Limit != LimitConcurrent {
		t.Fatal(r)
	}
	u := a.Usage(t0)
	if u.Requests != 4 || u.RequestsReset != 20*time.Second || u.Active != 2 || u.Tokens != 100 {
		t.Fatalf("%+v", u)
	}
	a.End(150, t0)
	b.End(0, t0)
	if _, r = l.Admit("red", t0); r == nil || r.Limit != LimitTokens || r.RetryAfter != 30600*time.Millisecond {
		t.Fatalf("%+v", r)
	}
	t1 := t0.Add(time.Minute)
	for i := range 6 {
		a, r := l.Admit("red", t1)
		if r != nil {
			t.Fatal(i, r)
		}
		a.End(0, t1)
	}
	if _, r = l.Admit("red", t1); r == nil || r.Limit != LimitRequests || r.RetryAfter != 10*time.Second {
		t.Fatalf("%+v", r)
	}
	for range 2 {
		if r := l.AdmitColdStart("red", t1); r != nil {
			t.Fatal(r)
		}
	}
	if r := l.AdmitColdStart("red", t1); r == nil || r.Limit != LimitColdStarts || r.RetryAfter != 30*time.Minute {
		t.Fatalf("%+v", r)
	}
	// New limits forget nothing that was used, and a team that is not told any more is free.
	l.SetTeams(newTeam("red", functions.Limits{RequestsPerMinute: 7}))
	if _, r = l.Admit("red", t1); r != nil {
		t.Fatal(r)
	}
	if _, r = l.Admit("red", t1); r == nil {
		t.Fatal("six were used, seven are allowed")
	}
	l.SetTeams(nil)
	if _, r = l.Admit("red", t1); r != nil {
		t.Fatal(r)
	}
	if u := l.Usage("nobody", t1); u != (Usage{}) {
		t.Fatal(u)
	}
}

func TestHeld(t *testing.T) {
	var l Limits
	if r := l.Hold("red", t0); r != nil {
		t.Fatal("no limit:", r)
	}
	l.SetTeams(newTeam("red", functions.Limits{HeldRequests: 2}))
	if r := l.Hold("red", t0); r != nil {
		t.Fatal(r)
	}
	r := l.Hold("red", t0)
	if r == nil || r.Limit != LimitHeld || r.RetryAfter != 5*time.Second || !strings.Contains(r.Message, "team red may have 2 requests held") {
		t.Fatalf("%+v", r)
	}
	if l.Hold("blue", t0) != nil {
		t.Fatal("another team's")
	}
	l.Unhold("red", t0)
	if r := l.Hold("red", t0); r != nil {
		t.Fatal("there is a place again:", r)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if l.Hold("red", t0) == nil {
					if n := l.Usage("red", t0).Held; n > 2 {
						t.Error("held:", n)
					}
					l.Unhold("red", t0)
				}
			}
		})
	}
	wg.Wait()
	if n := l.Usage("red", t0).Held; n != 2 {
		t.Fatal("held in the end:", n)
	}
}

// Exact under concurrency: with the clock standing still, exactly the limit is
// admitted, and never more than Concurrent are in at once.
func TestExactUnderConcurrency(t *testing.T) {
	var l Limits
	l.SetTeams(newTeam("red", functions.Limits{Concurrent: 5, RequestsPerMinute: 300, ColdStartsPerHour: 17}))
	var mu sync.Mutex
	in, most, admitted, woken := 0, 0, 0, 0
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			for range 400 {
				if l.AdmitColdStart("red", t0) == nil {
					mu.Lock()
					woken++
					mu.Unlock()
				}
				lease, refused := l.Admit("red", t0)
				if refused != nil {
					continue
				}
				mu.Lock()
				in++
				admitted++
				most = max(most, in)
				mu.Unlock()
				for range r.IntN(3) {
					l.Usage("red", t0)
				}
				mu.Lock()
				in--
				mu.Unlock()
				lease.End(1, t0)
			}
		})
	}
	wg.Wait()
	if most > 5 || admitted != 300 || woken != 17 {
		t.Fatalf("at once %d, admitted %d, woken %d", most, admitted, woken)
	}
	if u := l.Usage("red", t0); u.Active != 0 || u.Spent != 300 {
		t.Fatalf("%+v", u)
	}
}

func BenchmarkLookup(b *testing.B) {
	path := filepath.Join(b.TempDir(), "keys.json")
	bk, _ := Open(path)
	s, _, _ := bk.Create("red", "", false)
	b.ReportAllocs()
	for b.Loop() {
		bk.Lookup(s)
	}
}

func BenchmarkAdmit(b *testing.B) {
	var l Limits
	l.SetTeams(newTeam("red", functions.Limits{RequestsPerMinute: 1e9}))
	b.ReportAllocs()
	for b.Loop() {
		x, _ := l.Admit("red", t0)
		x.End(1, t0)
	}
}
