// Package balance picks the READY replica that serves a request.
//
// The rule, in order: replicas that broke a moment ago or have no free slot are
// out; a request for an adapter goes among those that have it loaded, while one
// of them has a slot; a second try goes elsewhere if it can; of the rest a request with an affinity key (its session, or how its
// first message begins) goes where that key hashes to, so that an engine's
// prefix cache is met again, unless that replica is clearly busier than the
// least loaded; everything else goes to the least loaded.
//
// Rendezvous hashing: a replica that comes or goes moves only its own share of
// the keys, and nothing has to be remembered per session.
package balance

import (
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// Target is a replica that may be picked.
type Target struct {
	ID       string
	Slots    int      // how many requests at once; at least 1
	Adapters []string // loaded there now; not changed afterwards
}

// Ask is what a request wants of the replica it is given.
type Ask struct {
	Key     uint64 // of its affinity; 0 for none
	Adapter string // it is for, "" for the base model: a replica that has it is preferred
	Not     string // the replica that has failed it; taken only where there is no other
}

// CoolDown is how long a replica that broke is left alone unless the platform
// says sooner what became of it.
const CoolDown = time.Second

// Set is the balance of one function: who is there and how busy. The zero
// value is empty.
type Set struct {
	mu      sync.Mutex
	members []member
	gone    map[string]int // in flight on replicas that are not targets any more, or not yet
}

type member struct {
	Target
	seed     uint64
	inFlight int
	broken   time.Time // zero, or until when it is left alone
}

// Update replaces the targets, keeping what is in flight. A replica that broke
// stays out until its time is over, whatever the platform publishes meanwhile:
// its picture may be older than our failure.
func (s *Set) Update(targets []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if same(s.members, targets) {
		return
	}
	old := s.members
	s.members = make([]member, len(targets))
	for i, t := range targets {
		m := member{Target: t, seed: xxh3.HashString(t.ID)}
		for j := range old {
			if old[j].ID == t.ID {
				m.inFlight, m.broken = old[j].inFlight, old[j].broken
				old[j].inFlight = 0
			}
		}
		if n, ok := s.gone[t.ID]; ok {
			m.inFlight = n
			delete(s.gone, t.ID)
		}
		s.members[i] = m
	}
	for i := range old {
		if old[i].inFlight > 0 {
			if s.gone == nil {
				s.gone = map[string]int{}
			}
			s.gone[old[i].ID] = old[i].inFlight
		}
	}
}

func same(ms []member, ts []Target) bool {
	if len(ms) != len(ts) {
		return false
	}
	for i := range ts {
		if m := &ms[i]; m.ID != ts[i].ID || m.Slots != ts[i].Slots || !slices.Equal(m.Adapters, ts[i].Adapters) {
			return false
		}
	}
	return true
}

// busier is how many requests more than the least loaded the replica of a key
// may have before affinity is given up: a fourth of its slots.
func busier(slots int) int { return max(1, slots/4) }

// Pick takes a slot on the best replica, if there is one; Done gives it back.
// An adapter goes where it is loaded, and to another only when all of those are
// full: loading it there takes less than waiting here.
func (s *Set) Pick(a Ask, now time.Time) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := -1
	if a.Adapter != "" {
		i = s.best(a, now, true)
	}
	if i < 0 {
		i = s.best(a, now, false)
	}
	if i < 0 && a.Not != "" {
		a.Not = ""
		i = s.best(a, now, false)
	}
	if i < 0 {
		return "", false
	}
	s.members[i].inFlight++
	return s.members[i].ID, true
}

// Take takes a slot on this very replica, a target or not yet; Done gives it back.
func (s *Set) Take(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if s.members[i].ID == id {
			s.members[i].inFlight++
			return
		}
	}
	if s.gone == nil {
		s.gone = map[string]int{}
	}
	s.gone[id]++
}

// best is the index of the best replica with a free slot, -1 for none; having
// looks only at those that have the adapter.
func (s *Set) best(a Ask, now time.Time, having bool) int {
	least, home := -1, -1
	var best uint64
	for i := range s.members {
		m := &s.members[i]
		if !m.usable(now) || m.inFlight >= m.Slots || a.Not != "" && m.ID == a.Not || having && !slices.Contains(m.Adapters, a.Adapter) {
			continue
		}
		if least < 0 || m.inFlight < s.members[least].inFlight {
			least = i
		}
		if a.Key != 0 {
			if h := mix(a.Key ^ m.seed); home < 0 || h > best {
				home, best = i, h
			}
		}
	}
	if home >= 0 && s.members[home].inFlight <= s.members[least].inFlight+busier(s.members[home].Slots) {
		return home
	}
	return least
}

func (m *member) usable(now time.Time) bool { return m.broken.IsZero() || !now.Before(m.broken) }

// Done gives the slot of a pick back.
func (s *Set) Done(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if s.members[i].ID == id {
			s.members[i].inFlight--
			return
		}
	}
	if n := s.gone[id]; n > 1 {
		s.gone[id] = n - 1
	} else {
		delete(s.gone, id)
	}
}

// Break marks a replica that failed a request: it is not picked for CoolDown.
func (s *Set) Break(id string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if s.members[i].ID == id {
			s.members[i].broken = now.Add(CoolDown)
		}
	}
}

// Capacity is the sum of the slots of the replicas that are not broken.
func (s *Set) Capacity(now time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if s.members[i].usable(now) {
			n += s.members[i].Slots
		}
	}
	return n
}

// InFlight of a replica, also of one that takes no new requests.
func (s *Set) InFlight(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if s.members[i].ID == id {
			return s.members[i].inFlight
		}
	}
	return s.gone[id]
}

// Flights yields each replica that has requests, and how many; also those that take
// no new ones, or not yet.
func (s *Set) Flights(yield func(id string, n int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.members {
		if n := s.members[i].inFlight; n > 0 {
			yield(s.members[i].ID, n)
		}
	}
	for id, n := range s.gone {
		yield(id, n)
	}
}

// Key hashes what a request's affinity goes by; never 0 for text.
func Key(text []byte) uint64 {
	if len(text) == 0 {
		return 0
	}
	return xxh3.Hash(text) | 1
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
