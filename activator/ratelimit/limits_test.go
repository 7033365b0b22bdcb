package ratelimit

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

var t0 = time.Unix(1_000_000, 0)

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
	if _, r = l.Admit("red", t0); r == nil || r.Limit != "concurrent" {
		t.Fatal(r)
	}
	u := l.Usage("red", t0)
	if u.Requests != 4 || u.RequestsReset != 20*time.Second || u.Active != 2 || u.Tokens != 100 {
		t.Fatalf("%+v", u)
	}
	a.End(150, t0)
	b.End(0, t0)
	if _, r = l.Admit("red", t0); r == nil || r.Limit != "tokens" || r.RetryAfter != 30600*time.Millisecond {
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
	if _, r = l.Admit("red", t1); r == nil || r.Limit != "requests" || r.RetryAfter != 10*time.Second {
		t.Fatalf("%+v", r)
	}
	for range 2 {
		if r := l.AdmitColdStart("red", t1); r != nil {
			t.Fatal(r)
		}
	}
	if r := l.AdmitColdStart("red", t1); r == nil || r.Limit != "cold_starts" || r.RetryAfter != 30*time.Minute {
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
	if u := l.Usage("unknown", t1); u != (Usage{}) {
		t.Fatal(u)
	}
}

// A team that has used its tokens to the last one waits for the next.
func TestNoTokenLeft(t *testing.T) {
	var l Limits
	l.SetTeams(newTeam("red", functions.Limits{TokensPerMinute: 100}))
	a, _ := l.Admit("red", t0)
	a.End(100, t0)
	if _, r := l.Admit("red", t0); r == nil || r.Limit != "tokens" {
		t.Fatalf("%+v", r)
	}
	if _, r := l.Admit("red", t0.Add(time.Second)); r != nil {
		t.Fatalf("%+v", r)
	}
}

func TestHeld(t *testing.T) {
	var l Limits
	if r := l.AdmitWaiting("red", t0); r != nil {
		t.Fatal("no limit:", r)
	}
	l.SetTeams(newTeam("red", functions.Limits{HeldRequests: 2}))
	if r := l.AdmitWaiting("red", t0); r != nil {
		t.Fatal(r)
	}
	r := l.AdmitWaiting("red", t0)
	if r == nil || r.Limit != "held" || r.RetryAfter != 5*time.Second || !strings.Contains(r.Message, "team red may have 2 requests held") {
		t.Fatalf("%+v", r)
	}
	if l.AdmitWaiting("blue", t0) != nil {
		t.Fatal("another team's")
	}
	l.EndWaiting("red", t0)
	if r := l.AdmitWaiting("red", t0); r != nil {
		t.Fatal("there is a place again:", r)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if l.AdmitWaiting("red", t0) == nil {
					if n := l.Usage("red", t0).Held; n > 2 {
						t.Error("held:", n)
					}
					l.EndWaiting("red", t0)
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
	in, maximum, admitted, woken := 0, 0, 0, 0
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
				maximum = max(maximum, in)
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
	if maximum > 5 || admitted != 300 || woken != 17 {
		t.Fatalf("at once %d, admitted %d, woken %d", maximum, admitted, woken)
	}
	if u := l.Usage("red", t0); u.Active != 0 || u.Spent != 300 {
		t.Fatalf("%+v", u)
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
