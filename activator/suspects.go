package activator

import (
	"hash/maphash"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// A request that crashes engines must not take all of them down in turn. Requests in flight
// at the crash of an engine are suspects: one that was in flight at two crashes runs alone
// next time, so that no other is lost with it. If the engine crashes again, the request is
// to blame and is refused for a time. A suspect that is answered is none any more.
//
// An engine crashes once: the platform unlists it, and what comes back is another. A replica
// that is listed still and breaks each connection, as on a node that was lost, tells nothing
// more of a request.

// suspectTime is how long a suspect is remembered after the last crash it was in, and how
// long the request to blame is refused.
const suspectTime = 10 * time.Minute

// maxSuspects bounds the suspects of an activator.
const maxSuspects = 1024

// The crashes of engines after which a suspect is handled differently.
const (
	crashesToRunAlone = 2
	crashesToRefuse   = 3 // the last one alone
)

// fingerprint identifies equal requests of a function.
type fingerprint struct {
	endpoint     *endpoint
	function     *entry
	adapter      string
	size         int
	bodyA, bodyB uint64 // hashes by two secret seeds
}

// fingerprint of the request, which must have a body.
func (x *proxyRequest) fingerprint() fingerprint {
	runs, body := &x.a.runs, x.req.Body
	return fingerprint{
		endpoint: x.endpoint, function: x.fn, adapter: x.queued.Adapter,
		size: len(body), bodyA: maphash.Bytes(runs.seedA, body), bodyB: maphash.Bytes(runs.seedB, body),
	}
}

// suspects are the requests that were in flight at crashes of engines. The zero value has
// none.
type suspects struct {
	count atomic.Int32 // of byPrint; requests look no further where it is 0

	mu      sync.Mutex
	byPrint map[fingerprint]suspect
	sweepAt time.Time // when those whose time is over are removed next
}

type suspect struct {
	crashes int
	listing uint64 // of the replica of the last crash
	until   time.Time
}

// find returns the suspect with this fingerprint; one without crashes where there is none.
func (s *suspects) find(p fingerprint, now time.Time) suspect {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	found := s.byPrint[p]
	if !now.Before(found.until) {
		return suspect{}
	}
	return found
}

// sweep removes the suspects whose time is over, once a minute at most. mu is held.
func (s *suspects) sweep(now time.Time) {
	if now.Before(s.sweepAt) {
		return
	}
	s.sweepAt = now.Add(time.Minute)
	maps.DeleteFunc(s.byPrint, func(_ fingerprint, v suspect) bool { return !now.Before(v.until) })
	s.count.Store(int32(len(s.byPrint)))
}

// crashed counts the crash of a replica's engine that the request was in, alone or not, and
// returns the suspect that it is now.
func (s *suspects) crashed(p fingerprint, listing uint64, alone bool, now time.Time) suspect {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	v, known := s.byPrint[p]
	if !known && len(s.byPrint) >= maxSuspects && !s.dropOne() {
		return suspect{}
	}
	if !now.Before(v.until) {
		v = suspect{}
	}
	if v.crashes > 0 && v.listing == listing {
		return v
	}
	v.listing = listing
	if alone {
		v.crashes = crashesToRefuse
	} else {
		v.crashes = max(v.crashes, min(v.crashes+1, crashesToRunAlone))
	}
	v.until = now.Add(suspectTime)
	if s.byPrint == nil {
		s.byPrint = map[fingerprint]suspect{}
	}
	s.byPrint[p] = v
	s.count.Store(int32(len(s.byPrint)))
	return v
}

// dropOne removes any suspect of one crash; false where there is none. mu is held.
func (s *suspects) dropOne() bool {
	for p, v := range s.byPrint {
		if v.crashes < crashesToRunAlone {
			delete(s.byPrint, p)
			return true
		}
	}
	return false
}

// acquit removes a suspect.
func (s *suspects) acquit(p fingerprint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPrint, p)
	s.count.Store(int32(len(s.byPrint)))
}

// checkSuspect refuses a request that is to blame for crashes of engines, and has one that
// was in two of them run alone.
func (x *proxyRequest) checkSuspect() *openai.Error {
	if x.a.suspects.count.Load() == 0 {
		return nil
	}
	now := x.a.o.Now()
	v := x.a.suspects.find(x.fingerprint(), now)
	if v.crashes >= crashesToRefuse {
		return quarantinedError(v.until.Sub(now))
	}
	x.suspected = v.crashes > 0
	x.queued.Alone = v.crashes >= crashesToRunAlone
	return nil
}

// isQuarantined reports whether the request was found to blame while it waited, as another
// that is equal to it.
func (x *proxyRequest) isQuarantined() (e *openai.Error, yes bool) {
	if x.reservation != nil || x.a.suspects.count.Load() == 0 {
		return nil, false
	}
	now := x.a.o.Now()
	v := x.a.suspects.find(x.fingerprint(), now)
	if v.crashes < crashesToRefuse {
		return nil, false
	}
	return quarantinedError(v.until.Sub(now)), true
}

func quarantinedError(left time.Duration) *openai.Error {
	minutes := strconv.Itoa(max(1, int((left+time.Minute-1)/time.Minute)))
	return openai.New(openai.RequestQuarantined, "The engine crashed with this request in it, the last time with no other request. An equal request is refused for the next "+minutes+" min. Change the request, or the engine that it crashes.")
}

// countCrash notes that the engine crashed with the request in it. The error, if any, is the
// request's answer: it is to blame.
func (x *proxyRequest) countCrash(now time.Time) *openai.Error {
	if x.reservation != nil || x.remote != nil {
		return nil
	}
	v := x.a.suspects.crashed(x.fingerprint(), x.queued.Listing(), x.queued.RanAlone(), now)
	x.suspected = v.crashes > 0 && v.crashes < crashesToRefuse
	x.queued.Alone = v.crashes == crashesToRunAlone
	if v.crashes < crashesToRefuse {
		return nil
	}
	x.fn.Data.queue.ReleaseAlone(now)
	x.a.o.Log.Warn("a request crashed its engine, which had no other, and is refused from now on", "id", x.id, "model", functions.Clip(x.env.Model), "team", x.team, "for", suspectTime)
	return quarantinedError(suspectTime)
}
