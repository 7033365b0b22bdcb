package activator

import (
	"errors"
	"time"

	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/suspects"
	"github.com/thaw-dev/thaw/activator/upstream"
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

// fingerprint identifies equal requests of a function.
type fingerprint struct {
	endpoint *openai.Endpoint
	function *entry
	adapter  string
	body     cache.Body
}

// fingerprint of the request, whose body must be known.
func (r *request) fingerprint() fingerprint {
	if r.hashed == (cache.Body{}) {
		r.hashed = cache.BodyOf(r.http.req.Body)
	}
	return fingerprint{r.endpoint, r.fn, r.adapter, r.hashed}
}

// suspicion is whether the request may be to blame for crashes of engines.
type suspicion struct {
	req       *request
	wait      *wait
	suspected bool // it was in flight at a crash, and is not refused for it
}

// find returns in how many crashes of engines the request was, as another that is equal
// to it, and refuses one that is to blame for them.
func (s *suspicion) find() (crashes int, e *openai.Error) {
	a := s.req.a
	if !s.req.knowsBody() || a.suspects.Empty() {
		return 0, nil
	}
	now := a.o.Now()
	v := a.suspects.Find(s.req.fingerprint(), now)
	if v.Crashes >= suspects.CrashesToRefuse {
		e = suspects.Refuse(v.Until.Sub(now))
	}
	return v.Crashes, e
}

// check refuses a request that is to blame for crashes of engines, and has one that
// was in two of them run alone.
func (s *suspicion) check() *openai.Error {
	crashes, e := s.find()
	s.suspected, s.wait.queued.Alone = crashes > 0, crashes >= suspects.CrashesToRunAlone
	return e
}

// countCrash notes that the engine crashed with the request in it, by the error of the
// exchange. The error that it returns, if any, is the request's answer: it is to blame. An
// engine that thaw ended, as a hung one, has not crashed. Callers leave out the failures of Remotes.
func (s *suspicion) countCrash(err error, now time.Time) *openai.Error {
	r, a, queued := s.req, s.req.a, &s.wait.queued
	if !r.knowsBody() || errors.Is(err, upstream.ErrCut) {
		return nil
	}
	v := a.suspects.Crashed(r.fingerprint(), queued.Grant.Listing, queued.Grant.Alone, now)
	s.suspected = v.Crashes > 0 && v.Crashes < suspects.CrashesToRefuse
	queued.Alone = v.Crashes == suspects.CrashesToRunAlone
	if v.Crashes < suspects.CrashesToRefuse {
		return nil
	}
	r.fn.Data.queue.ReleaseAlone(now)
	a.o.Log.Warn("a request crashed its engine, which had no other, and is refused from now on", "id", r.id,
		"model", functions.Clip(r.env.Model), "team", r.team, "for", suspects.Time)
	return suspects.Refuse(suspects.Time)
}
