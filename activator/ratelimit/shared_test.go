package ratelimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// cluster is a coordinator and activators, with links between them that are slow and end, in
// virtual time. It knows the law: a bucket of the whole limit, out of which every
// admission takes, is never overdrawn.
type cluster struct {
	t      testing.TB
	now    time.Time
	limits functions.Limits
	dead   string // the id of an activator that is known to be dead
	coord  *Coordinator
	epoch  int
	acts   []*act
	serial int

	level    [3]float64
	filledAt time.Time
	admitted [3]int
}

// act is one activator.
type act struct {
	id           string
	l            *Limits
	leases       []Lease
	held         int
	connected    bool
	up           []reportMessage
	down         []downward
	ends         int  // ticks until the coordinator sees that the link has ended
	disconnected bool // it lives, and is not linked again
	needs        bool
}

type reportMessage struct {
	first bool
	c     *UsageReports
}

type downward struct{ g Allotments }

func newCluster(t testing.TB, l functions.Limits, n int) *cluster {
	r := &cluster{t: t, now: t0, filledAt: t0, limits: l}
	r.level = [3]float64{float64(l.RequestsPerMinute), 0, float64(l.ColdStartsPerHour)}
	r.startCoordinator()
	for range n {
		r.join()
	}
	for range 4 {
		r.step(10 * time.Millisecond)
	}
	r.coord.Recovered(r.now)
	r.step(10 * time.Millisecond)
	return r
}

func (c *cluster) startCoordinator() {
	c.epoch++
	c.coord = NewCoordinator(CoordinatorOptions{
		Send: func(id string, g Allotments) {
			for _, a := range c.acts {
				if a.id == id && a.connected {
					a.down = append(a.down, downward{g})
				}
			}
		},
		Recovering: true,
		Dead:       func(id string) bool { return id == c.dead },
	})
	c.coord.SetLimits(c.sizes(), c.now)
}

func (c *cluster) sizes() map[Key]int64 {
	out := map[Key]int64{}
	for k, n := range Sizes(c.limits) {
		if n > 0 {
			out[Key{Team: "red", Kind: Kind(k)}] = int64(n)
		}
	}
	return out
}

func (c *cluster) join() *act {
	c.serial++
	a := &act{id: fmt.Sprint("act-", c.serial), l: &Limits{}}
	a.l.ShareLimits(func() { a.needs = true })
	a.l.SetTeams(newTeam("red", c.limits))
	c.acts = append(c.acts, a)
	c.link(a)
	return a
}

func (c *cluster) link(a *act) {
	if a.connected || a.ends > 0 {
		return
	}
	a.connected, a.up, a.down = true, nil, nil
	a.up = append(a.up, reportMessage{true, a.l.Reports(true, true, c.now)})
}

// unlink ends a link; the coordinator sees it a little later.
func (c *cluster) unlink(a *act, ticks int) {
	if !a.connected {
		return
	}
	a.connected, a.up, a.down = false, nil, nil
	a.l.OnDisconnect(c.now)
	a.ends = 1 + ticks
}

// step lets time go by: messages that were sent before arrive.
func (c *cluster) step(d time.Duration) {
	c.now = c.now.Add(d)
	for _, a := range c.acts {
		if a.ends > 0 {
			if a.ends--; a.ends == 0 {
				c.coord.OnDisconnect(a.id, c.now)
			}
			continue
		}
		up, down := a.up, a.down
		a.up, a.down = nil, nil
		for _, d := range down {
			a.l.ApplyAllotments(d.g, c.now)
		}
		for _, u := range up {
			if err := c.coord.Report(a.id, u.first, u.c, c.now); err != nil {
				c.t.Fatal(err)
			}
		}
		if a.connected && a.needs {
			a.needs = false
			if report := a.l.Reports(false, false, c.now); report != nil {
				a.up = append(a.up, reportMessage{false, report})
			}
		}
	}
}

func (c *cluster) second() {
	for _, a := range c.acts {
		if a.connected {
			a.up = append(a.up, reportMessage{false, a.l.Reports(false, true, c.now)})
		}
	}
	c.coord.Tick(c.now)
}

// checkSpent checks an admission against the law.
func (c *cluster) checkSpent(i int, kind string) {
	sizes := [3]float64{float64(c.limits.RequestsPerMinute), 0, float64(c.limits.ColdStartsPerHour)}
	spans := [3]time.Duration{time.Minute, time.Minute, time.Hour}
	for j := range c.level {
		c.level[j] = min(sizes[j], c.level[j]+sizes[j]*float64(c.now.Sub(c.filledAt))/float64(spans[j]))
	}
	c.filledAt = c.now
	c.admitted[i]++
	if c.level[i]--; sizes[i] > 0 && c.level[i] < -1e-3 {
		c.t.Fatalf("%s: one more than the limit at %v, overdrawn by %v", kind, c.now.Sub(t0), -c.level[i])
	}
}

func (c *cluster) inUse() {
	active, held := 0, 0
	for _, a := range c.acts {
		active += len(a.leases)
		held += a.held
	}
	if n := c.limits.Concurrent; n > 0 && active > n {
		c.t.Fatalf("%d at once, %d are allowed, at %v", active, n, c.now.Sub(t0))
	}
	if n := c.limits.HeldRequests; n > 0 && held > n {
		c.t.Fatalf("%d held, %d are allowed", held, n)
	}
}

// take tries to have a request admitted, as Patiently does but for the waiting, which
// is done all at once here.
func (c *cluster) take(a *act) *Refusal {
	lease, no := a.l.Admit("red", c.now)
	if no == nil {
		c.checkSpent(0, "requests")
		a.leases = append(a.leases, lease)
		c.inUse()
	}
	return no
}

// takeWaiting asks until there is an answer that is one.
func (c *cluster) takeWaiting(a *act) *Refusal {
	no := c.take(a)
	for i := 0; no != nil && no.account != nil && i < 25; i++ {
		b := &no.account.buckets[no.kind]
		b.Await()
		a.needs = true
		c.step(10 * time.Millisecond)
		if i%10 == 9 {
			c.coord.Tick(c.now)
		}
		b.EndAwait()
		no = c.take(a)
	}
	return no
}

func (c *cluster) end(a *act) {
	if n := len(a.leases); n > 0 {
		a.leases[n-1].End(1, c.now)
		a.leases = a.leases[:n-1]
	}
}

// TestShareSkewed: for any choice of activator, the whole limit is admitted and no more, and a
// refusal says when to come again.
func TestShareSkewed(t *testing.T) {
	for _, c := range []struct {
		name  string
		acts  int
		limit int
		pick  func(i int) int
	}{
		{"one alone", 1, 60, func(int) int { return 0 }},
		{"all to one of two", 2, 60, func(int) int { return 0 }},
		{"by turns", 2, 60, func(i int) int { return i % 2 }},
		{"nine of ten to one", 3, 200, func(i int) int { return max(0, i%10-8) }},
		{"few among many", 8, 3, func(i int) int { return i % 8 }},
		{"one, among many", 8, 1, func(i int) int { return 7 }},
		{"many", 5, 5000, func(i int) int { return i * i % 5 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, functions.Limits{RequestsPerMinute: c.limit}, c.acts)
			began := r.now
			var last *Refusal
			for i := range c.limit + c.limit/2 + 20 {
				if no := r.takeWaiting(r.acts[c.pick(i)]); no != nil {
					last = no
				}
			}
			// What has come in the time that it took is the limit's, too.
			come := int(float64(c.limit) * r.now.Sub(began).Minutes())
			if r.admitted[0] < c.limit || r.admitted[0] > c.limit+come+1 {
				t.Errorf("%d admitted of %d and %d in %v", r.admitted[0], c.limit, come, r.now.Sub(began))
			}
			if c.limit < 1000 && (last == nil || last.RetryAfter <= 0 || last.RetryAfter > time.Minute/time.Duration(c.limit)+time.Second) {
				t.Errorf("%+v", last)
			}
		})
	}
}

// TestShareConcurrent: places go to the activators that need them, and come back.
func TestShareConcurrent(t *testing.T) {
	r := newCluster(t, functions.Limits{Concurrent: 4}, 2)
	a, b := r.acts[0], r.acts[1]
	for range 4 {
		if no := r.takeWaiting(a); no != nil {
			t.Fatal(no)
		}
	}
	if no := r.takeWaiting(b); no == nil || no.Limit != "concurrent" || no.account != nil {
		t.Fatalf("a fifth: %+v", no)
	}
	for range 4 {
		r.end(a)
	}
	for range 20 { // the answer that there is none counts for a moment
		r.step(10 * time.Millisecond)
	}
	for i := range 4 {
		if no := r.takeWaiting(b); no != nil {
			t.Fatal(i, no)
		}
	}
	// Its places are its own until it is known to be gone.
	r.unlink(b, 0)
	b.disconnected = true
	r.step(time.Second)
	if no := r.takeWaiting(a); no == nil {
		t.Fatal("the places of one that is away are given to another")
	}
	b.leases = nil // it died
	for range 130 {
		r.step(500 * time.Millisecond)
		r.second()
	}
	if no := r.takeWaiting(a); no != nil {
		t.Fatal("the places of the dead:", no)
	}
}

// TestShareOfTheDead: what an activator had is given to the others as soon as it is known
// to be dead, and not after the minute that one without a link may come back in.
func TestShareOfTheDead(t *testing.T) {
	r := newCluster(t, functions.Limits{Concurrent: 4}, 2)
	a, b := r.acts[0], r.acts[1]
	for range 4 {
		if no := r.takeWaiting(b); no != nil {
			t.Fatal(no)
		}
	}
	r.unlink(b, 0)
	b.disconnected = true
	r.step(time.Second)
	b.leases, r.dead = nil, b.id
	r.coord.Tick(r.now)
	r.step(time.Second)
	for i := range 4 {
		if no := r.takeWaiting(a); no != nil {
			t.Fatal(i, no)
		}
	}
}

// TestShareDebt: what a request took of tokens is known afterwards, so that a bucket may
// have less than nothing. The debt is paid with what comes, over the end of a link as
// well, and all of the limit is had besides.
func TestShareDebt(t *testing.T) {
	const limit, each = 600, 50
	r := newCluster(t, functions.Limits{TokensPerMinute: limit}, 2)
	began, spent := r.now, 0
	for tick := range 1800 {
		for _, a := range r.acts {
			if lease, no := a.l.Admit("red", r.now); no == nil {
				lease.End(each, r.now)
				spent += each
			} else if no.account != nil {
				a.needs = true
			}
		}
		r.step(100 * time.Millisecond)
		r.coord.Tick(r.now)
		if tick%10 == 0 {
			r.second()
		}
		switch a := r.acts[0]; tick {
		case 600:
			r.unlink(a, 1)
		case 610:
			r.link(a)
		}
	}
	allowed := limit + int(limit*r.now.Sub(began).Minutes())
	if spent > allowed+len(r.acts)*each || spent < allowed-2*len(r.acts)*each {
		t.Errorf("%d tokens in %v, %d are allowed", spent, r.now.Sub(began), allowed)
	}
}

// TestShareAlone: without a controller each has its part and no more.
func TestShareAlone(t *testing.T) {
	r := newCluster(t, functions.Limits{RequestsPerMinute: 600}, 2)
	for range 10 {
		r.step(100 * time.Millisecond)
		r.second()
	}
	for _, a := range r.acts {
		r.unlink(a, 0)
	}
	r.coord = NewCoordinator(CoordinatorOptions{Send: func(string, Allotments) {}, Recovering: true})
	for range 600 {
		r.step(100 * time.Millisecond)
		for range 3 {
			for _, a := range r.acts {
				if no := r.take(a); no == nil {
					r.end(a)
				} else if no.account != nil || no.RetryAfter <= 0 {
					t.Fatalf("%+v", no)
				}
			}
		}
	}
	if n := r.admitted[0]; n < 560 || n > 1200 {
		t.Errorf("%d in a minute without a controller, 600 and what was left are allowed", n)
	}
}

// TestShareDisconnected: what one has without a link the others do not have, from the moment
// its link ends until it is known to be dead, and newcomers only what others gave up.
func TestShareDisconnected(t *testing.T) {
	r := newCluster(t, functions.Limits{RequestsPerMinute: 600}, 2)
	all := func(span time.Duration, also func(i int)) {
		for i := range int(span / (100 * time.Millisecond)) {
			r.step(50 * time.Millisecond)
			r.step(50 * time.Millisecond)
			if i%10 == 9 {
				r.second()
			}
			for range 5 {
				for _, a := range r.acts {
					if r.take(a) == nil {
						r.end(a)
					}
				}
			}
			also(i)
		}
	}
	all(5*time.Second, func(int) {})
	r.unlink(r.acts[0], 1)
	before := r.admitted[0]
	all(30*time.Second, func(int) {})
	if n := r.admitted[0] - before; n < 270 {
		t.Errorf("%d in half a minute with one away, 300 are allowed", n)
	}
	all(time.Second, func(int) { // more come, while one is away, and have no link for long
		if len(r.acts) < 6 {
			r.join()
		}
	})
	for _, a := range r.acts[2:] {
		r.unlink(a, 0)
	}
	all(20*time.Second, func(int) {})
	for _, a := range r.acts {
		r.link(a)
	}
	before = r.admitted[0]
	all(30*time.Second, func(int) {})
	if n := r.admitted[0] - before; n < 270 {
		t.Errorf("%d in half a minute with all back, 300 are allowed", n)
	}
}

// TestShareJoin: a new activator admits nothing of what is
// limited.
func TestShareJoin(t *testing.T) {
	var l Limits
	l.ShareLimits(func() {})
	l.SetTeams(newTeam("red", functions.Limits{RequestsPerMinute: 5, Concurrent: 5}))
	if _, no := l.Admit("red", t0); no == nil || no.account != nil || no.RetryAfter <= 0 {
		t.Errorf("%+v", no)
	}
	if _, no := l.Admit("blue", t0); no != nil {
		t.Error("no limit:", no)
	}
}

// TestShareNewCoordinator: what was spent before a controller ended is spent under the next.
func TestShareNewCoordinator(t *testing.T) {
	r := newCluster(t, functions.Limits{ColdStartsPerHour: 6}, 2)
	wake := func(a *act) bool {
		for range 30 {
			no := a.l.AdmitColdStart("red", r.now)
			if no == nil {
				r.checkSpent(2, "cold starts")
				return true
			}
			if no.account == nil {
				return false
			}
			b := &no.account.buckets[no.kind]
			b.Await()
			a.needs = true
			r.step(10 * time.Millisecond)
			b.EndAwait()
		}
		return false
	}
	for range 4 {
		if !wake(r.acts[0]) {
			t.Fatal("refused")
		}
	}
	r.second()
	r.step(10 * time.Millisecond)
	left := r.coord.Use(Key{Team: "red", Kind: ColdStarts}, r.now).Left
	if math.Abs(left-2) > 0.01 {
		t.Errorf("%v left of 6, 4 were spent", left)
	}
	for _, a := range r.acts {
		r.unlink(a, 0)
	}
	r.step(time.Second)
	r.startCoordinator()
	for _, a := range r.acts {
		a.ends = 0
		r.link(a)
	}
	r.step(10 * time.Millisecond)
	r.coord.Recovered(r.now)
	n := 0
	for i := range 6 {
		if wake(r.acts[i%2]) {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d more under the next controller, 2 are left", n)
	}
}

// playCluster does what bytes say to three activators and a controller.
func playCluster(t testing.TB, moves []byte) {
	r := newCluster(t, functions.Limits{RequestsPerMinute: 40, ColdStartsPerHour: 9, Concurrent: 5, HeldRequests: 3}, 3)
	for i, m := range moves {
		a := r.acts[int(m>>4)%len(r.acts)]
		switch m & 15 {
		case 0, 1, 2:
			r.take(a)
		case 3:
			r.takeWaiting(a)
		case 4, 5:
			r.end(a)
		case 6:
			if a.l.AdmitColdStart("red", r.now) == nil {
				r.checkSpent(2, "cold starts")
			}
		case 7:
			if a.l.AdmitWaiting("red", r.now) == nil {
				a.held++
				r.inUse()
			}
		case 8:
			if a.held > 0 {
				a.held--
				a.l.EndWaiting("red", r.now)
			}
		case 9:
			r.step(time.Millisecond)
		case 10:
			r.step(100 * time.Millisecond)
			r.coord.Tick(r.now)
		case 11:
			r.step(time.Second)
			r.second()
		case 12: // its link ends, and comes back with the next second
			r.unlink(a, int(m>>6))
		case 13: // it is linked again
			for _, x := range r.acts {
				r.link(x)
			}
		case 14: // it dies, its requests with it, and another one begins
			if i%3 == 0 {
				r.unlink(a, 0)
				r.coord.OnDisconnect(a.id, r.now)
				for j := range r.acts {
					if r.acts[j] == a {
						r.acts = append(r.acts[:j], r.acts[j+1:]...)
						break
					}
				}
				r.join()
			}
		case 15: // another controller
			if i%2 == 0 {
				continue
			}
			for _, x := range r.acts {
				r.unlink(x, 0)
				x.ends = 0
			}
			r.step(time.Duration(m>>4) * 500 * time.Millisecond)
			r.startCoordinator()
			for _, x := range r.acts {
				r.link(x)
			}
			r.step(time.Millisecond)
			r.coord.Recovered(r.now)
		}
	}
}

// TestShareModel plays at random.
func TestShareModel(t *testing.T) {
	for seed := range uint64(300) {
		moves := make([]byte, 400)
		g := rand.New(rand.NewPCG(seed, 5))
		for i := range moves {
			moves[i] = byte(g.Uint32())
		}
		playCluster(t, moves)
		if t.Failed() {
			t.Fatal("seed", seed)
		}
	}
}

func FuzzShare(f *testing.F) {
	f.Add([]byte{3, 19, 35, 11, 15, 3, 12, 3, 13, 14, 3})
	f.Fuzz(func(t *testing.T, moves []byte) {
		playCluster(t, moves[:min(len(moves), 2000)])
	})
}
