package gate

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

var t0 = time.Unix(1000, 0)

func open(n int, bytes int64) *Gate {
	g := &Gate{}
	g.Bound(Bounds{n, bytes})
	return g
}

func TestBounds(t *testing.T) {
	g := open(2, 100)
	var a, b, c Waiter
	if got := g.Enter(&a, "t", 60, t0); got != Waits {
		t.Fatal(got)
	}
	if got := g.Enter(&b, "t", 41, t0); got != Full {
		t.Fatal("bytes:", got)
	}
	if got := g.Enter(&b, "t", 40, t0); got != Waits {
		t.Fatal(got)
	}
	if got := g.Enter(&c, "t", 0, t0); got != Full {
		t.Fatal("count:", got)
	}
	if g.Leave(&a, t0) {
		t.Fatal("not deserted yet")
	}
	if got := g.Enter(&c, "t", 60, t0); got != Waits {
		t.Fatal("a leaver must free its place and bytes at once:", got)
	}
	g.Leave(&b, t0)
	if !g.Leave(&c, t0) || g.Leave(&c, t0) {
		t.Fatal("deserted is told once")
	}
	if l := g.Load(); l != (Load{}) {
		t.Fatal(l)
	}
	if g.line != nil {
		t.Fatal("an idle gate owns no line")
	}
}

func TestReleaseIsPaced(t *testing.T) {
	g := open(10, 1000)
	ws := make([]Waiter, 5)
	for i := range ws {
		g.Enter(&ws[i], "t", 1, t0)
	}
	if n := g.Resize(2); n != 2 {
		t.Fatal("released", n)
	}
	for i := range ws {
		select {
		case <-ws[i].Done():
			if i > 1 {
				t.Fatal("too many through")
			}
		default:
			if i < 2 {
				t.Fatal("first come first served")
			}
		}
	}
	if p := g.Position(&ws[4]); p != 3 {
		t.Fatal("position", p)
	}
	g.Leave(&ws[0], t0.Add(time.Second))
	<-ws[2].Done()
	var late Waiter
	if a := g.Enter(&late, "t", 1, t0); a != Waits {
		t.Fatal("nobody passes those who wait:", a)
	}
	if l := g.Load(); l.Active != 2 || l.Queued != 3 || !l.LastEnd.Equal(t0.Add(time.Second)) || l.Free() {
		t.Fatalf("%+v", l)
	}
	if n := g.Turn("no"); n != 3 {
		t.Fatal(n)
	}
	<-late.Done()
	if late.Verdict() != "no" || ws[2].Verdict() != nil {
		t.Fatal("verdicts")
	}
	g.Leave(&late, t0)
	g.Leave(&ws[1], t0)
	g.Leave(&ws[2], t0)
	if l := g.Load(); l.Active != 0 {
		t.Fatal(l)
	}
}

func TestFairBetweenTeams(t *testing.T) {
	g := open(1000, 1000)
	many := make([]Waiter, 100)
	for i := range many {
		g.Enter(&many[i], "greedy", 1, t0)
	}
	var one, two Waiter
	g.Enter(&one, "small", 1, t0)
	g.Enter(&two, "small", 1, t0)
	if p, q := g.Position(&one), g.Position(&two); p != 2 || q != 4 {
		t.Fatalf("positions %d %d, want 2 and 4", p, q)
	}
	if p := g.Position(&many[99]); p != 102 {
		t.Fatal("position of the last", p)
	}
	g.Resize(2)
	<-one.Done()
}

func TestTell(t *testing.T) {
	g := &Gate{}
	c := g.Changed()
	if c != g.Changed() {
		t.Fatal("one channel until it is closed")
	}
	g.Tell()
	<-c
	g.Tell()
}

// The property: against a model that knows only the law. FIFO inside a team,
// round robin between teams, exact accounting, positions that come true.
func TestLineAgainstModel(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := &line{}
		model := map[string][]*Waiter{}
		var ring []string
		var bytes int64
		n := 0
		check := func() {
			if l.count != n || l.bytes != bytes {
				t.Fatalf("seed %d: count %d bytes %d, want %d %d", seed, l.count, l.bytes, n, bytes)
			}
		}
		drop := func(team string, i int) {
			bytes -= model[team][i].bytes
			n--
			model[team] = slices.Delete(model[team], i, i+1)
			if len(model[team]) == 0 {
				delete(model, team)
				k := slices.Index(ring, team)
				ring = slices.Delete(ring, k, k+1)
			}
		}
		for range 3000 {
			switch k := r.IntN(10); {
			case k < 5:
				w := &Waiter{team: fmt.Sprint("t", r.IntN(5)), bytes: int64(r.IntN(100))}
				l.add(w)
				if model[w.team] == nil {
					ring = append(ring, w.team)
				}
				model[w.team] = append(model[w.team], w)
				bytes += w.bytes
				n++
			case k < 7 && n > 0:
				team := ring[r.IntN(len(ring))]
				i := r.IntN(len(model[team]))
				l.remove(model[team][i])
				drop(team, i)
			case n > 0:
				team := ring[0]
				want := model[team][0]
				if p := l.position(want); p != 1 {
					t.Fatalf("seed %d: position of the next is %d", seed, p)
				}
				if got := l.take(); got != want {
					t.Fatalf("seed %d: out of turn", seed)
				}
				drop(team, 0)
				if len(ring) > 0 && ring[0] == team {
					ring = append(ring[1:], team)
				}
			default:
				if l.take() != nil {
					t.Fatal("an empty line has nobody")
				}
			}
			check()
		}
		// Every position comes true.
		want := map[*Waiter]int{}
		for _, ws := range model {
			for _, w := range ws {
				want[w] = l.position(w)
			}
		}
		for turn := 1; ; turn++ {
			w := l.take()
			if w == nil {
				break
			}
			if want[w] != turn {
				t.Fatalf("seed %d: told %d, served at %d", seed, want[w], turn)
			}
		}
		if l.lanes != nil || l.turn != nil {
			t.Fatal("an empty line keeps nothing")
		}
	}
}

func TestConcurrentAccounting(t *testing.T) {
	g := open(50, 1<<20)
	g.Resize(3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	in, most := 0, 0
	for i := range 64 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 100 {
				var w Waiter
				switch g.Enter(&w, fmt.Sprint(i%3), 10, t0) {
				case Full:
					continue
				case Waits:
					if r.IntN(4) == 0 {
						g.Leave(&w, t0)
						continue
					}
					<-w.Done()
				}
				mu.Lock()
				in++
				most = max(most, in)
				mu.Unlock()
				runtime.Gosched()
				mu.Lock()
				in--
				mu.Unlock()
				g.Leave(&w, t0)
			}
		})
	}
	wg.Wait()
	if l := g.Load(); l.Active != 0 || l.Queued != 0 || l.Bytes != 0 {
		t.Fatalf("%+v", l)
	}
	if most > 3 {
		t.Fatal("capacity exceeded:", most)
	}
}

func BenchmarkPass(b *testing.B) {
	g := open(10, 100)
	g.Resize(10)
	b.ReportAllocs()
	var w Waiter
	for b.Loop() {
		g.Enter(&w, "t", 10, t0)
		g.Leave(&w, t0)
	}
}

func BenchmarkEnterLeaveAmong10000(b *testing.B) {
	g := open(20000, 1<<30)
	ws := make([]Waiter, 10000)
	for i := range ws {
		g.Enter(&ws[i], "t", 10, t0)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		g.Leave(&ws[i], t0)
		g.Enter(&ws[i], "t", 10, t0)
		if g.Position(&ws[i]) != 10000 {
			b.Fatal("position")
		}
		i = (i + 7919) % len(ws)
	}
}

type ear struct {
	Waiter
	told int
}

func (e *ear) Told() { e.told++ }

// Who listens is told once, without a channel, let through or turned away.
func TestListener(t *testing.T) {
	var g Gate
	g.Bound(Bounds{Requests: 10, Bytes: 1 << 20})
	now := time.Unix(0, 0)
	var es [4]ear
	for i := range es {
		es[i].Listener = &es[i]
		if a := g.Enter(&es[i].Waiter, "a", 1, now); a != Waits || es[i].Done() != nil {
			t.Fatalf("%d: %v, done %v", i, a, es[i].Done())
		}
	}
	g.Resize(1)
	if es[0].told != 1 || es[1].told != 0 || es[0].Verdict() != nil {
		t.Fatalf("let through: %d %d %v", es[0].told, es[1].told, es[0].Verdict())
	}
	g.Leave(&es[0].Waiter, now)
	if es[1].told != 1 {
		t.Fatal("the next was not told")
	}
	g.Turn("no")
	if es[2].told != 1 || es[3].told != 1 || es[3].Verdict() != "no" || es[0].told != 1 || es[1].told != 1 {
		t.Fatalf("turned away: %+v", es)
	}
	g.Leave(&es[1].Waiter, now)
	if a := g.Enter(&es[3].Waiter, "a", 1, now); a != Through || es[3].Listener == nil || es[3].Verdict() != nil {
		t.Fatalf("again: %v %v", a, es[3].Verdict())
	}
}

// TestClaim: who has its answer already leaves the line out of turn, though there is
// no capacity, and counts as through.
func TestClaim(t *testing.T) {
	g := open(4, 100)
	var a, b, c Waiter
	for _, w := range []*Waiter{&a, &b, &c} {
		if got := g.Enter(w, "t", 10, t0); got != Waits {
			t.Fatal(got)
		}
	}
	if !g.Claim(&b) || g.Claim(&b) {
		t.Error("claimed other than once")
	}
	if l := g.Load(); l.Active != 1 || l.Queued != 2 || l.Bytes != 20 || g.Position(&c) != 2 {
		t.Errorf("%+v", l)
	}
	if n := g.Resize(1); n != 0 {
		t.Errorf("%d let through beside it", n)
	}
	g.Leave(&b, t0)
	select {
	case <-a.Done():
	default:
		t.Error("its slot is nobody's")
	}
	if g.Claim(&a) {
		t.Error("claimed though let through")
	}
	g.Turn("no")
	if g.Claim(&c) {
		t.Error("claimed though turned away")
	}
	g.Leave(&a, t0)
	g.Resize(0)
	g.Enter(&a, "t", 10, t0)
	if !g.Claim(&a) || g.line != nil {
		t.Error("the last of the line leaves one behind")
	}
	if g.Leave(&a, t0); !g.Load().Idle() {
		t.Errorf("%+v", g.Load())
	}
}
