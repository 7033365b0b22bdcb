// Package suspects remembers, for ten minutes, requests that were in flight when an engine crashed,
// equal ones as one, and counts the crashes: the caller runs one alone after two, and refuses it
// once an engine crashed while running it alone. So a request does not take all engines down in
// turn. K identifies equal requests.
package suspects

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
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
func (t *Table[K]) Find(p K, now time.Time) Suspect {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	found := t.byPrint[p]
	if !now.Before(found.Until) {
		return Suspect{}
	}
	return found
}

// Empty reports whether there is no suspect; a request looks no further then.
func (t *Table[K]) Empty() bool { return t.count.Load() == 0 }

// sweep removes the suspects whose time is over, once a minute at most. mu is held.
func (t *Table[K]) sweep(now time.Time) {
	if now.Before(t.sweepAt) {
		return
	}
	t.sweepAt = now.Add(time.Minute)
	maps.DeleteFunc(t.byPrint, func(_ K, v Suspect) bool { return !now.Before(v.Until) })
	t.count.Store(int32(len(t.byPrint)))
}

// Crashed counts the crash of a replica's engine that the request was in, alone or not, and
// returns the suspect that it is now.
func (t *Table[K]) Crashed(p K, listing uint64, alone bool, now time.Time) Suspect {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	v, known := t.byPrint[p]
	if !known && len(t.byPrint) >= maxTable && !t.dropOne() {
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
	if t.byPrint == nil {
		t.byPrint = map[K]Suspect{}
	}
	t.byPrint[p] = v
	t.count.Store(int32(len(t.byPrint)))
	return v
}

// dropOne removes any suspect of one crash; false where there is none. mu is held.
func (t *Table[K]) dropOne() bool {
	for p, v := range t.byPrint {
		if v.Crashes < CrashesToRunAlone {
			delete(t.byPrint, p)
			return true
		}
	}
	return false
}

// Acquit removes a suspect.
func (t *Table[K]) Acquit(p K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byPrint, p)
	t.count.Store(int32(len(t.byPrint)))
}

// Refuse is the answer to a request that is refused for the time that is left.
func Refuse(left time.Duration) *openai.Error {
	minutes := strconv.Itoa(max(1, int((left+time.Minute-1)/time.Minute)))
	return openai.New(openai.RequestQuarantined,
		"The engine crashed with this request in it, the last time with no other request. An equal request is refused for the next "+minutes+
			" min. Change the request, or the engine that it crashes.")
}
