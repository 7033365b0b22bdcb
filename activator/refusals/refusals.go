// Package refusals decides whether the end of a refused request (4xx, 503) gets its line in the
// log, at most ten a second for each team and status, and logs how many were left out; it refuses
// nothing itself.
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

// logs reports whether a refusal is logged, as one of the first of its kind in a second.
func (l *Log) logs(kind refusal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[refusal]int{}
	}
	if _, ok := l.kinds[kind]; !ok && len(l.kinds) >= maxKinds {
		kind = refusal{}
	}
	l.kinds[kind]++
	if l.kinds[kind] > PerSecond {
		l.due.Store(l.began.Add(time.Second).UnixNano())
		return false
	}
	return true
}

// report begins a new second if the last one is over, and logs how many refusals of each
// kind that one left out.
func (l *Log) report(now time.Time, log *slog.Logger) {
	l.mu.Lock()
	if now.Sub(l.began) < time.Second {
		l.mu.Unlock()
		return
	}
	kinds := l.kinds
	l.began, l.kinds = now, nil
	l.due.Store(0)
	l.mu.Unlock()
	for kind, n := range kinds {
		if n > PerSecond {
			log.LogAttrs(context.Background(), slog.LevelInfo, "refused requests are not logged one by one", slog.Int("code", kind.code),
				slog.String("team", kind.team), slog.Int("requests", n-PerSecond))
		}
	}
}

// LogsEnd reports whether the end of a request is logged. Every refusal reports what the
// second before left out; every other request does where there is something.
func (l *Log) LogsEnd(team string, code int, now time.Time, log *slog.Logger) bool {
	refused := code >= 400 && code < 500 && code != 499 || code == 503
	if due := l.due.Load(); refused || due != 0 && now.UnixNano() >= due {
		l.report(now, log)
	}
	return !refused || l.logs(refusal{team, code})
}

// Settled reports whether nothing is left to report.
func (l *Log) Settled() bool { return l.due.Load() == 0 }
