// Package suspects finds the requests that crash engines, so that they do not take all of
// them down in turn: it counts the crashes that a request was in flight at. K identifies
// equal requests.
package suspects

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Time is how long a suspect is remembered after the last crash it was in, and how
// long the request to blame is refused.
const Time = 10 * time.Minute

// maxTable bounds the suspects of an activator.
const maxTable = 1024

// The crashes of engines after which a suspect is handled differently.
const (
	CrashesToRunAlone = 2
	CrashesToRefuse   = 3 // the last one alone
)

// Table has the requests that were in flight at crashes of engines. The zero value has
// none.
type Table[K comparable] struct {
	count atomic.Int32 // of byPrint

	mu      sync.Mutex
	byPrint map[K]Suspect
	sweepAt time.Time // when those whose time is over are removed next
}

// Suspect is what is known of one request.
type Suspect struct {
	Crashes int
	listing uint64 // of the replica of the last crash
	Until   time.Time
}

// Find returns the suspect with this fingerprint; one without crashes where there is none.
func (s *Table[K]) Find(p K, now time.Time) Suspect {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	found := s.byPrint[p]
	if !now.Before(found.Until) {
		return Suspect{}
	}
	return found
}

// Empty reports whether there is no suspect; a request looks no further then.
func (s *Table[K]) Empty() bool { return s.count.Load() == 0 }

// sweep removes the suspects whose time is over, once a minute at most. mu is held.
func (s *Table[K]) sweep(now time.Time) {
	if now.Before(s.sweepAt) {
		return
	}
	s.sweepAt = now.Add(time.Minute)
	maps.DeleteFunc(s.byPrint, func(_ K, v Suspect) bool { return !now.Before(v.Until) })
	s.count.Store(int32(len(s.byPrint)))
}

// Crashed counts the crash of a replica's engine that the request was in, alone or not, and
// returns the suspect that it is now.
func (s *Table[K]) Crashed(p K, listing uint64, alone bool, now time.Time) Suspect {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	v, known := s.byPrint[p]
	if !known && len(s.byPrint) >= maxTable && !s.dropOne() {
		return Suspect{}
	}
	if !now.Before(v.Until) {
		v = Suspect{}
	}
	if v.Crashes > 0 && v.listing == listing {
		return v
	}
	v.listing = listing
	if alone {
		v.Crashes = CrashesToRefuse
	} else {
		v.Crashes = max(v.Crashes, min(v.Crashes+1, CrashesToRunAlone))
	}
	v.Until = now.Add(Time)
	if s.byPrint == nil {
		s.byPrint = map[K]Suspect{}
	}
	s.byPrint[p] = v
	s.count.Store(int32(len(s.byPrint)))
	return v
}

// dropOne removes any suspect of one crash; false where there is none. mu is held.
func (s *Table[K]) dropOne() bool {
	for p, v := range s.byPrint {
		if v.Crashes < CrashesToRunAlone {
			delete(s.byPrint, p)
			return true
		}
	}
	return false
}

// Acquit removes a suspect.
func (s *Table[K]) Acquit(p K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPrint, p)
	s.count.Store(int32(len(s.byPrint)))
}
