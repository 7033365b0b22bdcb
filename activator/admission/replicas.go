package admission

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// CoolDown is how long a replica that failed a request is not chosen, whatever
// snapshot is published meanwhile: a snapshot may be older than the failure.
const CoolDown = time.Second

// Grant is a slot of a replica. Its request holds it from admission to Leave.
type Grant struct {
	Replica *snapshot.Replica
	Alone   bool // no other request of the queue is given the replica meanwhile
	// Listing identifies the stay of the replica in the snapshots: one that was not listed for
	// a while, as after a crash, has another. It is 0 before the first grant.
	Listing uint64

	queue *Queue
	slot  *replica // nil once released
	low   bool     // the request is of priority Low
}

// replica is one replica of a queue and the requests it has. Fields are guarded
// by the queue's mutex.
type replica struct {
	Replica  *snapshot.Replica // as in the newest snapshot that has it
	listing  uint64            // number of this stay in the snapshots, from its first to its last one
	seed     uint64
	slots    int
	lowSlots int // how many of the slots may be in use for a request of priority Low to get one
	inFlight int
	listed   bool      // in the newest snapshot; others end the requests they have
	coolsAt  time.Time // when the cool-down after a failure ends; zero: it did not fail
	errors   functions.ErrorRun
}

// usable reports whether the replica may be given requests.
func (r *replica) usable(now time.Time) bool {
	return r.listed && (r.coolsAt.IsZero() || !now.Before(r.coolsAt))
}

// load is how many requests the replica has, with those that wait inside its engine: they
// may be other activators', and what it has of ours is slow there.
func (r *replica) load() int { return r.inFlight + r.Replica.EngineQueue }

// setReplicas replaces the replicas that take requests. A replica that is not in
// f any more stays while it has requests. mu is held.
func (q *Queue) setReplicas(f *snapshot.Snapshot) {
	old := q.replicas
	if !slices.EqualFunc(old, f.Replicas, func(r *replica, s snapshot.Replica) bool { return r.listed && r.Replica.ID == s.ID }) {
		q.replicas = make([]*replica, 0, len(f.Replicas))
		for i := range f.Replicas {
			r := findReplica(old, f.Replicas[i].ID)
			if r == nil {
				r = newReplica(&f.Replicas[i])
			}
			r.listed = true
			q.replicas = append(q.replicas, r)
		}
		for _, r := range old {
			if !slices.Contains(q.replicas, r) {
				r.listed = false
				if r.inFlight > 0 {
					q.replicas = append(q.replicas, r)
				}
			}
		}
	}
	for i := range f.Replicas {
		r := findReplica(q.replicas, f.Replicas[i].ID)
		r.Replica, r.slots = &f.Replicas[i], f.SlotsOf(&f.Replicas[i])
		r.lowSlots = r.slots
		if r.Replica.Slots == 0 { // the engine works on half of them at once: the others find no low one waiting there
			r.lowSlots = max(1, r.slots/2)
		}
	}
}

func newReplica(of *snapshot.Replica) *replica {
	return &replica{Replica: of, listing: listings.Add(1), seed: xxh3.HashString(of.ID)}
}

var listings atomic.Uint64

// findReplica is the replica with this id, nil if there is none.
func findReplica(all []*replica, id string) *replica {
	for _, r := range all {
		if r.Replica.ID == id {
			return r
		}
	}
	return nil
}

// choose is the best replica with a free slot for req; nil only where no usable
// replica has one. A request for an adapter goes to a replica without it only
// when those that have it are full: loading it takes less time than waiting.
// mu is held.
func (q *Queue) choose(req *Request, now time.Time) *replica {
	if req.Adapter != "" {
		if r := q.best(req, req.FailedReplica, now, true); r != nil {
			return r
		}
	}
	r := q.best(req, req.FailedReplica, now, false)
	if r == nil && req.FailedReplica != "" {
		r = q.best(req, "", now, false)
	}
	return r
}

// best is the best replica with a free slot other than not; with loaded only
// those that have the request's adapter count.
func (q *Queue) best(req *Request, not string, now time.Time, loaded bool) *replica {
	var minimum, preferred, last *replica
	var highest uint64
	lastID := ""
	if req.Session {
		lastID = q.sessions.find(req.Key, now)
	}
	for _, r := range q.replicas {
		slots := r.slots
		if req.Priority == Low {
			slots = r.lowSlots
		}
		if r == q.apart || r.inFlight >= slots || !r.usable(now) || not != "" && r.Replica.ID == not ||
			loaded && !slices.Contains(r.Replica.Adapters, req.Adapter) {
			continue
		}
		if minimum == nil || r.load() < minimum.load() || r.load() == minimum.load() && r.Replica.HitRate > minimum.Replica.HitRate {
			minimum = r
		}
		if r.Replica.ID == lastID {
			last = r
		}
		if req.Key != 0 {
			if h := mixHash(req.Key ^ r.seed); preferred == nil || h > highest {
				preferred, highest = r, h
			}
		}
	}
	if last != nil {
		preferred = last
	}
	// the replica of a key may have a fourth of its slots more requests than the least loaded one
	if preferred != nil && preferred.load() <= minimum.load()+max(1, preferred.slots/4) {
		return preferred
	}
	return minimum
}

// assignSlot gives req a slot of r. mu is held.
func (q *Queue) assignSlot(req *Request, r *replica, now time.Time) {
	q.remember(req, r, now)
	r.inFlight++
	q.active++
	req.Grant = Grant{Replica: r.Replica, queue: q, slot: r, Listing: r.listing, low: req.Priority == Low}
	if req.Grant.low {
		q.lowActive++
	}
}

// release takes the slot back. mu is held.
func (g *Grant) release(now time.Time) {
	q, r := g.queue, g.slot
	g.slot = nil
	if g.Alone {
		q.apart, q.runsAlone = nil, false
	}
	r.inFlight--
	q.active--
	switch {
	case !g.low:
		q.lastUse = time.Time{}
	case q.lastUse.IsZero() && q.lastEnd.IsZero():
		q.lastUse = BeforeAll
	case q.lastUse.IsZero():
		q.lastUse = q.lastEnd
	}
	if q.lastEnd = now; g.low {
		q.lowActive--
	}
	if r.inFlight == 0 && !r.listed {
		q.replicas = slices.DeleteFunc(q.replicas, func(x *replica) bool { return x == r })
	}
}

// InFlight is how many requests a replica has, also one that takes no new ones.
func (q *Queue) InFlight(id string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := findReplica(q.replicas, id); r != nil {
		return r.inFlight
	}
	return 0
}

// AffinityKey hashes the text that a request's affinity goes by; 0 only for none.
func AffinityKey(text []byte) uint64 {
	if len(text) == 0 {
		return 0
	}
	return xxh3.Hash(text) | 1
}

// Opening is the first part of a body's prompt, bounded: requests that share it share an
// engine's prefix cache.
func Opening(body []byte) []byte {
	const bound, window = 1024, 4096 // a prompt may be megabytes and hold the word too
	for _, name := range [...]string{`"messages"`, `"prompt"`, `"input"`} {
		if i := bytes.Index(body[:min(len(body), window)], []byte(name)); i >= 0 {
			return body[i:min(len(body), i+bound)]
		}
	}
	return nil
}

// mixHash is the finaliser of splitmix64.
func mixHash(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
