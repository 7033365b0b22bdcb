package controlstream

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
)

// replicas are the ends of the names of each function's replicas.
var replicas = []string{"r1", "r2"}

// naive computes a hub's demand anew each time, from everything that was ever reported: the
// reference for a Hub.
type naive struct {
	now   time.Time
	peers map[string]*said
	ends  map[functions.Name]time.Time
	uses  map[functions.Name]time.Time // ends of the requests that are not of priority low
	seq   uint64
	left  map[string]uint64 // by replica: since when it is in no snapshot
}

type said struct {
	demand map[functions.Name]activator.Demand
	lost   time.Time
	heard  uint64
}

func (n *naive) expire() {
	for id, p := range n.peers {
		if !p.lost.IsZero() && n.now.Sub(p.lost) >= grace {
			for name, d := range p.demand {
				if d.Active > 0 && p.lost.After(n.ends[name]) {
					n.ends[name] = p.lost
				}
				if d.Active > 0 {
					n.use(name, map[bool]time.Time{true: p.lost, false: admission.BeforeAll}[d.Active > d.Low.Active])
				}
			}
			delete(n.peers, id)
		}
	}
}

func (n *naive) use(name functions.Name, at time.Time) {
	if at.After(n.uses[name]) {
		n.uses[name] = at
	}
}

func (n *naive) of(name functions.Name) activator.Demand {
	out := activator.Demand{Name: name, LastEnd: n.ends[name]}
	if n.uses[name].Before(n.ends[name]) {
		out.Low.LastUse = n.uses[name]
	}
	var low, others time.Time // the oldest waiters
	note := func(to *time.Time, at time.Time) {
		if !at.IsZero() && (to.IsZero() || at.Before(*to)) {
			*to = at
		}
	}
	for _, replica := range replicas {
		if k := n.inFlight(name, name.Name+replica); k > 0 {
			addInFlight(&out, name.Name+replica, k)
		}
	}
	for _, p := range n.peers {
		d := p.demand[name]
		out.Active, out.Queued = out.Active+d.Active, out.Queued+d.Queued
		out.Low.Active, out.Low.Queued = out.Low.Active+d.Low.Active, out.Low.Queued+d.Low.Queued
		if d.Queued > d.Low.Queued {
			note(&others, d.Oldest)
		} else {
			note(&low, d.Oldest)
		}
		if out.Oldest = others; others.IsZero() {
			out.Oldest = low
		}
	}
	return out
}

func (n *naive) inFlight(name functions.Name, replica string) (k int) {
	for _, p := range n.peers {
		k += p.demand[name].InFlight[replica]
		if since, ok := n.left[replica]; ok && p.lost.IsZero() && p.heard < since {
			k++
		}
	}
	return k
}

// TestHubIsNaive: whatever activators report, and in whatever order they connect and
// disconnect, what a Hub has reported is at each moment the naive sum, with the requests in flight.
func TestHubIsNaive(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { checkHub(t, seed) }) // the real time stands still
	}
}

func checkHub(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 9))
	n := &naive{now: moment, peers: map[string]*said{}, ends: map[functions.Name]time.Time{}, uses: map[functions.Name]time.Time{},
		left: map[string]uint64{}}
	h, sums := watched(HubOptions{Now: func() time.Time { return n.now }})
	links := map[string]*peer{}
	names := []functions.Name{name("a"), name("b"), name("c")}
	routed := map[functions.Name][]string{}
	var log []string
	demand := func(of functions.Name) activator.Demand {
		d := activator.Demand{Name: of}
		if r.IntN(3) > 0 {
			d.Active = r.IntN(3)
		}
		if d.Queued = r.IntN(3); d.Queued > 0 {
			d.Oldest = n.now.Add(-time.Duration(r.IntN(10)) * 100 * time.Millisecond)
		}
		if r.IntN(2) == 0 {
			d.LastEnd = n.now.Add(-time.Duration(r.IntN(10)) * 100 * time.Millisecond)
		}
		if !d.LastEnd.IsZero() && r.IntN(2) == 0 { // low ones ended since
			if d.Low.LastUse = admission.BeforeAll; r.IntN(2) == 0 {
				d.Low.LastUse = d.LastEnd.Add(-time.Second)
			}
		}
		d.Low.Active, d.Low.Queued = r.IntN(d.Active+1), r.IntN(d.Queued+1)
		if d.Active > 0 {
			d.InFlight = map[string]int{of.Name + replicas[r.IntN(2)]: d.Active}
		}
		return d
	}
	say := func(id string, whole bool) {
		p, l := n.peers[id], links[id]
		var u Report
		if whole {
			p.demand = map[functions.Name]activator.Demand{}
		}
		for _, of := range names {
			if r.IntN(2) == 0 {
				d := demand(of)
				u.Demand = append(u.Demand, d)
				p.demand[of] = d
				if d.LastEnd.After(n.ends[of]) {
					n.ends[of] = d.LastEnd
				}
				if n.use(of, d.Low.LastUse); d.Low.LastUse.IsZero() {
					n.use(of, d.LastEnd)
				}
			}
		}
		heard := p.heard
		if r.IntN(2) == 0 {
			heard = n.seq
		}
		p.heard = heard
		if err := h.onReport(l, u.pack(whole, heard, n.now)); err != nil {
			t.Fatal(err)
		}
	}
	look := func() {
		t.Helper()
		for _, of := range names {
			want, got := n.of(of), sums.demand(of)
			got.Name = of
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d: %s\nafter %q", seed, d, log)
			}
		}
	}
	for range 300 {
		id := fmt.Sprint("act", r.IntN(3))
		op := r.IntN(10)
		log = append(log, fmt.Sprint(op, " ", id))
		switch {
		case op < 2: // connect, maybe again
			p := h.newPeer(KindActivator, id, played(nil, maxUp))
			former := links[id]
			n.peers[id] = &said{demand: map[functions.Name]activator.Demand{}}
			links[id] = p
			if err := h.addPeer(p); err != nil {
				t.Fatal(err)
			}
			if former != nil {
				h.removePeer(former) // its reader ends later, and must not remove the new connection
			}
			say(id, true)
		case op < 6:
			if p := n.peers[id]; p != nil && p.lost.IsZero() {
				say(id, r.IntN(4) == 0)
			}
		case op == 6:
			if p := n.peers[id]; p != nil && p.lost.IsZero() {
				p.lost = n.now
				h.removePeer(links[id])
				delete(links, id)
			}
		case op == 7: // replicas are added and removed
			of := names[r.IntN(3)]
			var next []string
			for _, x := range replicas {
				if r.IntN(2) == 0 {
					next = append(next, of.Name+x)
				}
			}
			n.seq++
			for _, x := range routed[of] {
				n.left[x] = n.seq
			}
			for _, x := range next {
				delete(n.left, x)
			}
			routed[of] = next
			h.Publish(ready(of, next...))
		default:
			n.now = n.now.Add(time.Duration(r.IntN(15)) * 100 * time.Millisecond)
			n.expire()
			h.dropLostActivators()
		}
		look()
	}
	n.now = n.now.Add(time.Hour)
	n.expire()
	h.dropLostActivators()
	look()
	for id := range n.peers {
		if !n.peers[id].lost.IsZero() {
			t.Fatal("the model forgot to forget")
		}
	}
}
