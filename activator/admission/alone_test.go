package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
)

// TestAlone: a request that runs alone gets a replica once that serves no other, and no
// other joins it; x enters to run alone and r enters, - leaves, ! leaves
// a replica that failed, = publishes replicas, ~ releases, ^ rejects.
func TestAlone(t *testing.T) {
	for name, c := range map[string]struct {
		replicas string // ids, of two slots each
		steps    []string
		want     string // replica of each request that has one
	}{
		"an idle replica at once":                 {"a", []string{"x1"}, "x1:a"},
		"the others wait for it":                  {"a", []string{"x1", "r1", "r2"}, "x1:a"},
		"the others follow":                       {"a", []string{"x1", "r1", "r2", "-x1"}, "r1:a r2:a"},
		"it waits for those before it":            {"a", []string{"r1", "x1", "r2"}, "r1:a"},
		"and is granted when they have left":      {"a", []string{"r1", "x1", "r2", "-r1"}, "x1:a"},
		"one at a time, the others in between":    {"a", []string{"x1", "x2", "r1", "-x1"}, "r1:a"},
		"the second after those":                  {"a", []string{"x1", "x2", "r1", "-x1", "r2", "-r1"}, "x2:a"},
		"others use the other replicas":           {"ab", []string{"r1", "r2", "x1", "r3"}, "r1:a r2:b r3:b"},
		"one replica is kept, not two":            {"ab", []string{"x1", "x2", "r1", "r2", "r3"}, "x1:a r1:b r2:b"},
		"it left before its turn":                 {"a", []string{"r1", "x1", "r2", "-x1"}, "r1:a r2:a"},
		"the next is granted when it left":        {"a", []string{"r1", "x1", "x2", "-x1", "-r1"}, "x2:a"},
		"the replica that is kept fails":          {"ab", []string{"r1", "r2", "x1", "!r1", "r3", "-r2"}, "x1:b"},
		"the replica that is kept leaves":         {"ab", []string{"r1", "r2", "x1", "=b", "-r2"}, "r1:a x1:b"},
		"a replica that comes is granted":         {"a", []string{"r1", "x1", "=ab"}, "r1:a x1:b"},
		"without a replica it waits":              {"", []string{"x1"}, ""},
		"the first replica serves others first":   {"", []string{"x1", "r1", "=a"}, "r1:a"},
		"released, it waits as all others do":     {"a", []string{"r1", "x1", "x2", "~"}, "r1:a x1:a"},
		"released, the one that runs stays":       {"a", []string{"x1", "x2", "r1", "~"}, "x1:a"},
		"rejected, the replica is open to others": {"a", []string{"r1", "x1", "^", "r2"}, "r1:a r2:a"},
	} {
		t.Run(name, func(t *testing.T) {
			q := freeSlots(100, 1000)
			publishIDs(q, c.replicas)
			all := map[string]*Request{}
			var order []string
			for _, s := range c.steps {
				switch s[0] {
				case 'x', 'r':
					all[s] = &Request{Team: "t", Bytes: 1, Alone: s[0] == 'x'}
					all[s].Enter(q, t0)
					order = append(order, s)
				case '-':
					all[s[1:]].Leave(t0)
				case '!':
					all[s[1:]].MarkFailed(true, t0)
					all[s[1:]].Leave(t0)
				case '=':
					publishIDs(q, s[1:])
				case '~':
					q.ReleaseAlone(t0)
				case '^':
					q.RejectAll(errTest)
				}
			}
			got := ""
			for _, id := range order {
				if at := all[id].ReplicaID(); at != "" {
					got += " " + id + ":" + at
				}
			}
			if len(got) > 0 {
				got = got[1:]
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			for _, id := range order {
				all[id].Leave(t0)
			}
			if l := q.Load(t0); l.Queued != 0 || l.Active != 0 || l.Bytes != 0 || q.apart != nil || q.runsAlone {
				t.Errorf("afterwards %+v", l)
			}
		})
	}
}

// publishIDs makes replicas of two slots, each with an id of one letter, those that are READY.
func publishIDs(q *Queue, ids string) {
	var rs []snapshot.Replica
	for _, id := range ids {
		rs = append(rs, replicaOf(string(id), 2))
	}
	publish(q, t0, rs...)
}

// TestAloneIsBounded: beyond maxAlone the queue is full for requests that run alone, and for
// those only; all of them count as waiting.
func TestAloneIsBounded(t *testing.T) {
	q := freeSlots(1000, 1000)
	rs := make([]Request, maxAlone+2)
	for i := range rs {
		rs[i] = Request{Team: fmt.Sprint(i % 3), Bytes: 1, Alone: i <= maxAlone}
		want := Waiting
		if i == maxAlone {
			want = Full
		}
		if got := rs[i].Enter(q, t0.Add(time.Duration(i))); got != want {
			t.Fatalf("%d: %v", i, got)
		}
	}
	l := q.Load(t0)
	if l.Queued != maxAlone+1 || l.Bytes != maxAlone+1 || !l.Oldest.Equal(t0) {
		t.Errorf("%+v", l)
	}
	if p := q.Position(&rs[3]); p != 4 {
		t.Errorf("position %d", p)
	}
}

// TestAloneAmongMany: whatever comes and goes, a request that runs alone has its replica to
// itself, and every request is granted a slot in the end.
func TestAloneAmongMany(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		q := freeSlots(1000, 1000)
		publishIDs(q, "abc")
		var waiting, running []*Request
		granted := 0
		const n = 300
		sort := func() {
			rest := waiting[:0]
			for _, r := range waiting {
				if r.ReplicaID() == "" {
					rest = append(rest, r)
					continue
				}
				granted++
				running = append(running, r)
			}
			waiting = rest
			for _, r := range running {
				if n := q.InFlight(r.ReplicaID()); r.Grant.Alone && n != 1 {
					t.Fatalf("seed %d: %d requests at a replica with one that runs alone", seed, n)
				}
			}
		}
		for i := 0; i < n || len(waiting) > 0; {
			if i < n && (rnd.IntN(2) == 0 || len(running) == 0) {
				r := &Request{Team: fmt.Sprint(rnd.IntN(3)), Alone: rnd.IntN(4) == 0, Priority: Priority(rnd.IntN(3) - 1)}
				if r.Enter(q, t0) == Full {
					t.Fatalf("seed %d: full", seed)
				}
				waiting = append(waiting, r)
				i++
			} else if k := len(running); k > 0 {
				at := rnd.IntN(k)
				running[at].Leave(t0)
				running = append(running[:at], running[at+1:]...)
			} else {
				t.Fatalf("seed %d: %d requests wait, and none runs", seed, len(waiting))
			}
			sort()
		}
		if granted != n {
			t.Fatalf("seed %d: %d of %d", seed, granted, n)
		}
	}
}
