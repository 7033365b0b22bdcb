package routes

import (
	"sync/atomic"

	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// readings has the features of recent bodies, which depend on nothing but the bytes: a request
// that a cache answers most often repeats an earlier one byte for byte. Of two in one slot
// the older is forgotten.
type readings [1024]atomic.Pointer[reading]

type reading struct {
	team     string // whose request it was
	body     cache.Body
	features functions.RouteFeatures
}

// Remember has the features of bodies remembered from now on, because a request of this Router
// was answered from a cache.
func (r *Route) Remember() {
	if r.readings.Load() == nil {
		r.readings.CompareAndSwap(nil, new(readings))
	}
}

// features are those of a body alone: remembered, or else read.
func (r *Route) features(q *Request, env *openai.Envelope, body []byte, path string) functions.RouteFeatures {
	known := r.readings.Load()
	if known == nil || openai.IsForm(path) {
		return r.decider.Features(env, body, path)
	}
	q.Hashed = cache.BodyOf(body)
	at := &known[q.Hashed.Sum()%uint64(len(known))]
	if last := at.Load(); last != nil && last.body == q.Hashed && last.team == q.Team {
		return last.features
	}
	f := r.decider.Features(env, body, path)
	at.Store(&reading{q.Team, q.Hashed, f})
	return f
}
