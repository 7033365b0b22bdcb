package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

func TestParsePriority(t *testing.T) {
	bounds := map[string]functions.Priority{"mild": functions.PriorityNormal, "idle": functions.PriorityLow, "free": functions.PriorityHigh}
	for _, c := range []struct {
		team, header string
		want         Priority
		status       int
		says         string
	}{
		{"red", "", Normal, 0, ""},
		{"red", "high", High, 0, ""},
		{"red", "normal", Normal, 0, ""},
		{"red", "low", Low, 0, ""},
		{"free", "high", High, 0, ""},
		{"mild", "", Normal, 0, ""},
		{"mild", "low", Low, 0, ""},
		{"idle", "", Low, 0, ""},
		{"idle", "low", Low, 0, ""},
		{"mild", "high", Normal, 403, "the team `mild` are at most `normal`"},
		{"idle", "normal", Normal, 403, "the team `idle` are at most `low`"},
		{"red", "urgent", Normal, 400, "high, normal or low, not `urgent`"},
		{"red", "High", Normal, 400, "high, normal or low"},
		{"mild", strings.Repeat("x", 5000), Normal, 400, "high, normal or low"},
	} {
		got, e := ParsePriority(c.header, c.team, bounds[c.team])
		if got != c.want || (e != nil) != (c.status != 0) {
			t.Errorf("%s, %.20q: %v, %v", c.team, c.header, got, e)
		} else if e != nil &&
			(e.Status != c.status || !strings.Contains(e.Message, c.says) || e.Param != PriorityHeader || len(e.Message) > 300) {
			t.Errorf("%s, %.20q: %d %s (%s)", c.team, c.header, e.Status, e.Message, e.Param)
		}
	}
}

// TestPriorityAgainstModel compares what a queue admits with a simple model: low requests
// only where no other waits, teams in turns, and a team's own by priority and arrival.
func TestPriorityAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		q := freeSlots(1000, 1000)
		publish(q, t0, replicaOf("a", 1))
		holder := &Request{Team: "t0"}
		holder.Enter(q, t0)
		type class struct {
			ring []string
			of   map[string][]*Request
		}
		classes := []*class{{of: map[string][]*Request{}}, {of: map[string][]*Request{}}} // low last
		classFor := func(r *Request) *class {
			if r.Priority == Low {
				return classes[1]
			}
			return classes[0]
		}
		drop := func(r *Request) {
			c := classFor(r)
			i := slices.Index(c.of[r.Team], r)
			if c.of[r.Team] = slices.Delete(c.of[r.Team], i, i+1); len(c.of[r.Team]) == 0 {
				delete(c.of, r.Team)
				c.ring = slices.DeleteFunc(c.ring, func(team string) bool { return team == r.Team })
			}
		}
		next := func() *Request { // the model's
			for _, c := range classes {
				if len(c.ring) == 0 {
					continue
				}
				r := c.of[c.ring[0]][0]
				c.ring = append(c.ring[1:], c.ring[0])
				drop(r)
				return r
			}
			return nil
		}
		for step := range 2000 {
			switch k := rnd.IntN(10); {
			case k < 5:
				r := &Request{Team: fmt.Sprint("t", rnd.IntN(4)), Priority: Priority(rnd.IntN(3) - 1)}
				if got := r.Enter(q, t0); got != Waiting {
					t.Fatalf("seed %d: %v", seed, got)
				}
				c := classFor(r)
				if c.of[r.Team] == nil {
					c.ring = append(c.ring, r.Team)
				}
				at := len(c.of[r.Team])
				for at > 0 && c.of[r.Team][at-1].Priority < r.Priority {
					at--
				}
				c.of[r.Team] = slices.Insert(c.of[r.Team], at, r)
			case k < 7:
				c := classes[rnd.IntN(2)]
				if len(c.ring) == 0 {
					continue
				}
				team := c.of[c.ring[rnd.IntN(len(c.ring))]]
				r := team[rnd.IntN(len(team))]
				drop(r)
				r.Leave(t0)
			default:
				want := next()
				if want != nil {
					if p := q.Position(want); p != 1 {
						t.Fatalf("seed %d, step %d: the next is told %d", seed, step, p)
					}
				}
				holder.Leave(t0)
				if want == nil {
					want = &Request{Team: "t0"}
					want.Enter(q, t0)
				}
				if want.ReplicaID() != "a" {
					t.Fatalf("seed %d, step %d: out of turn", seed, step)
				}
				holder = want
			}
			l, low := q.Load(t0), 0
			for _, rs := range classes[1].of {
				low += len(rs)
			}
			if l.Low.Queued != low || (l.Low.Active == 1) != (holder.Priority == Low) {
				t.Fatalf("seed %d, step %d: %+v, and %d low requests wait", seed, step, l, low)
			}
		}
		// Every position comes true.
		told := map[*Request]int{}
		for _, c := range classes {
			for _, rs := range c.of {
				for _, r := range rs {
					told[r] = q.Position(r)
				}
			}
		}
		for turn := 1; len(told) > 0; turn++ {
			want := next()
			if told[want] != turn {
				t.Fatalf("seed %d: told %d, served at %d", seed, told[want], turn)
			}
			delete(told, want)
			holder.Leave(t0)
			holder = want
		}
		holder.Leave(t0)
		if l := q.Load(t0); l.Active+l.Queued+l.Low.Active+l.Low.Queued != 0 || q.low.teamQueues != nil || q.waiting.teamQueues != nil {
			t.Fatalf("seed %d: %+v", seed, l)
		}
	}
}

// TestLowMakesPlace: a full queue rejects low requests for others, in count and in bytes:
// the newest of the team that has the most.
func TestLowMakesPlace(t *testing.T) {
	enter := func(q *Queue, team string, p Priority, bytes int64, want Admission) *Request {
		t.Helper()
		r := &Request{Team: team, Priority: p, Bytes: bytes}
		if got := r.Enter(q, t0); got != want {
			t.Fatalf("%v, want %v", got, want)
		}
		return r
	}
	q := freeSlots(4, 100)
	a := enter(q, "a", Low, 10, Waiting)
	b := enter(q, "b", Low, 10, Waiting)
	c := enter(q, "b", Low, 10, Waiting)
	d := enter(q, "b", Low, 10, Waiting)
	enter(q, "a", Low, 10, Full)
	c.Leave(t0)
	c = enter(q, "b", Low, 10, Waiting)
	enter(q, "a", Normal, 10, Waiting)
	if c.Rejection() == nil || c.Rejection().Status != 503 || a.Rejection() != nil || b.Rejection() != nil || d.Rejection() != nil {
		t.Fatal("the newest of b makes place")
	}
	c.Leave(t0)
	enter(q, "b", Normal, 75, Waiting)
	if d.Rejection() == nil || a.Rejection() != nil && b.Rejection() != nil {
		t.Fatal("as many as the bytes need, and no more")
	}
	enter(q, "b", Normal, 16, Full)
	if l := q.Load(t0); l.Bytes > 100 || l.Queued > 4 || l.Low.Queued != 1 {
		t.Fatalf("%+v", l)
	}
}

// TestLowSlots: where an engine works on half of its slots at once, low requests do not wait
// in it.
func TestLowSlots(t *testing.T) {
	m := &functions.Model{}
	m.Spec.Queue.Requests, m.Spec.Queue.Bytes, m.Spec.Scale.Target = 100, 1000, 2
	q := &Queue{}
	none, one := &snapshot.Snapshot{Model: m}, &snapshot.Snapshot{Model: m, Replicas: []snapshot.Replica{{ID: "a"}}}
	q.Publish(nil, none, t0)
	q.Publish(none, one, t0)
	for i, c := range []struct {
		p    Priority
		want Admission
	}{{Low, Admitted}, {Low, Admitted}, {Low, Waiting}, {Normal, Admitted}, {High, Admitted}, {Normal, Waiting}} {
		if got := (&Request{Priority: c.p}).Enter(q, t0); got != c.want {
			t.Errorf("request %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestLoadOfPriorities: the oldest waiter is a low one only where no other waits, and the
// end of a low request is no use.
func TestLoadOfPriorities(t *testing.T) {
	q := freeSlots(10, 1000)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	low, other := &Request{Priority: Low}, &Request{}
	low.Enter(q, at(1))
	if l := q.Load(at(2)); !l.Oldest.Equal(at(1)) || l.Low.Queued != 1 {
		t.Errorf("%+v", l)
	}
	other.Enter(q, at(3))
	if l := q.Load(at(4)); !l.Oldest.Equal(at(3)) || l.Queued != 2 || l.Low.Queued != 1 {
		t.Errorf("%+v", l)
	}
	publish(q, at(5), replicaOf("a", 1))
	if other.ReplicaID() != "a" || low.ReplicaID() != "" {
		t.Error("the low one is behind")
	}
	other.Leave(at(6))
	if l := q.Load(at(6)); l.Low.Active != 1 || !l.Low.LastUse.IsZero() {
		t.Errorf("%+v", l)
	}
	low.Leave(at(7))
	var second Queue
	publish(&second, at(1), replicaOf("a", 1))
	only, _ := admitted(&second, Request{Priority: Low}, at(1))
	only.Leave(at(2))
	if l := second.Load(at(2)); l.Low != (LowLoad{LastUse: BeforeAll}) {
		t.Errorf("%+v", l)
	}
	if l := q.Load(at(7)); l.Low != (LowLoad{LastUse: at(6)}) || !l.LastEnd.Equal(at(7)) {
		t.Errorf("%+v", l)
	}
}

// TestWakeOfLow: the first request charges for a cold start, whatever its priority; low ones
// nudge and the first other one wakes.
func TestWakeOfLow(t *testing.T) {
	q := freeSlots(100, 1000)
	f := &snapshot.Snapshot{}
	var did []string
	for _, p := range []Priority{Low, Low, Normal, Low, High} {
		r := &Request{Priority: p}
		r.Enter(q, t0)
		w := r.Decide(f, ClientTimeouts{}, t0).Wake
		if w == Begin {
			did = append(did, "admit")
			w = q.ConfirmBegin()
		}
		switch w {
		case Replica:
			did = append(did, "start")
			q.Woken("cs-1")
		case Nudge:
			did = append(did, "nudge")
		}
	}
	if got := strings.Join(did, " "); got != "admit nudge start" || q.ColdStart() != "cs-1" {
		t.Errorf("%s, %q", got, q.ColdStart())
	}
}
