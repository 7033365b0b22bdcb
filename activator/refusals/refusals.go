// Package refusals bounds the lines that refused requests write to the log.
package refusals

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// PerSecond bounds the lines a second of refusals of one kind: a refusal costs a
// client nothing, and must not fill the log.
const PerSecond = 10

// maxKinds bounds the kinds that are counted apart in one second.
const maxKinds = 1000

// refusal groups refused requests, so that those of one team do not hide another's.
type refusal struct {
	team string
	code int
}

// Log decides which refused requests are logged, and counts the others. The zero
// value is ready.
type Log struct {
	due atomic.Int64 // when the number of those that are not logged is to be reported, in ns since 1970; 0: there are none

	mu    sync.Mutex
	began time.Time // of the second that kinds counts
	kinds map[refusal]int
}

// isRefusal reports whether a request that ended with code was refused.
func isRefusal(code int) bool { return code >= 400 && code < 500 && code != 499 || code == 503 }

// logs reports whether a refusal is logged, as one of the first of its kind in a second.
func (r *Log) logs(kind refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[refusal]int{}
	}
	if _, ok := r.kinds[kind]; !ok && len(r.kinds) >= maxKinds {
		kind = refusal{}
	}
	r.kinds[kind]++
	if r.kinds[kind] > PerSecond {
		r.due.Store(r.began.Add(time.Second).UnixNano())
		return false
	}
	return true
}

// report begins a new second if the last one is over, and logs how many refusals of each
// kind that one left out.
func (r *Log) report(now time.Time, log *slog.Logger) {
	r.mu.Lock()
	if now.Sub(r.began) < time.Second {
		r.mu.Unlock()
		return
	}
	kinds := r.kinds
	r.began, r.kinds = now, nil
	r.due.Store(0)
	r.mu.Unlock()
	for kind, n := range kinds {
		if n > PerSecond {
			log.LogAttrs(context.Background(), slog.LevelInfo, "refused requests are not logged one by one", slog.Int("code", kind.code), slog.String("team", kind.team), slog.Int("requests", n-PerSecond))
		}
	}
}

// LogsEnd reports whether the end of a request is logged. Every refusal reports what the
// second before left out; every other request does where there is something.
func (r *Log) LogsEnd(team string, code int, now time.Time, log *slog.Logger) bool {
	refused := isRefusal(code)
	if due := r.due.Load(); refused || due != 0 && now.UnixNano() >= due {
		r.report(now, log)
	}
	return !refused || r.logs(refusal{team, code})
}

// Settled reports whether nothing is left to report.
func (r *Log) Settled() bool { return r.due.Load() == 0 }
