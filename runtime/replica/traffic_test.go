package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// busyEngine is an engine without metrics that does one thing at a time: while a request
// of ours is in flight it answers nothing else.
type busyEngine struct {
	fakeNode
	busy atomic.Pointer[func(now time.Time) functions.Traffic] // nil: it is idle
}

func newBusyEngine() *busyEngine {
	s := &busyEngine{}
	s.metrics = func() (engine.Metrics, error) {
		if s.hang.Load() {
			return engine.Metrics{}, errors.New("timeout")
		}
		return engine.Metrics{}, engine.ErrNoMetrics
	}
	s.traffic = func(string) functions.Traffic {
		if f := s.busy.Load(); f != nil {
			return (*f)(time.Now())
		}
		return functions.Traffic{}
	}
	return s
}

// serve begins a request, or with nil ends the last one. alone is that the engine answers
// nothing beside it.
func (e *busyEngine) serve(alone bool, t func(now time.Time) functions.Traffic) {
	e.hang.Store(alone)
	if t == nil {
		e.busy.Store(nil)
		return
	}
	e.busy.Store(&t)
}

// plainSince is the traffic of a plain request that was sent at a time.
func plainSince(sent time.Time) func(time.Time) functions.Traffic {
	return func(time.Time) functions.Traffic { return functions.Traffic{InFlight: 1, Waiting: sent} }
}

// An engine that works is not killed, though it answers neither /metrics nor a probe; one
// that hangs is, and the message names the deadline. Its requests are ended first, so that
// they do not count as in flight at a crash.
func TestBusyEngine(t *testing.T) {
	for _, c := range []struct {
		name   string
		during func(l *replicaRun, s *busyEngine)
		why    string // of its end; "" lives
		after  time.Duration
	}{
		{name: "a plain request of 30 s", during: func(_ *replicaRun, s *busyEngine) {
			s.serve(true, plainSince(time.Now()))
			time.Sleep(30 * time.Second)
			s.serve(false, nil)
		}},
		{name: "a slow stream", during: func(_ *replicaRun, s *busyEngine) {
			s.serve(true, func(now time.Time) functions.Traffic {
				return functions.Traffic{InFlight: 1, LastByte: now.Truncate(4 * time.Second)}
			})
			time.Sleep(10 * time.Minute)
			s.serve(false, nil)
		}},
		{name: "requests in turn", during: func(_ *replicaRun, s *busyEngine) {
			s.serve(true, func(now time.Time) functions.Traffic {
				return functions.Traffic{InFlight: 8, Waiting: now.Add(-4 * time.Minute), LastByte: now.Truncate(time.Minute)}
			})
			time.Sleep(10 * time.Minute)
			s.serve(false, nil)
		}},
		{name: "a connection is reset beside it", during: func(l *replicaRun, s *busyEngine) {
			s.serve(true, plainSince(time.Now()))
			time.Sleep(20 * time.Second)
			l.Suspect("it died before the first byte of an answer")
			time.Sleep(20 * time.Second)
			s.serve(false, nil)
		}},
		{name: "its client leaves", during: func(_ *replicaRun, s *busyEngine) {
			s.serve(true, plainSince(time.Now()))
			time.Sleep(30 * time.Second)
			s.busy.Store(nil)
			time.Sleep(9 * time.Second)
			s.serve(false, nil)
		}},
		{name: "its client leaves, and it hangs",
			why:   "hung: /metrics not answered for 10s (deadlines.hang: 10s); then no answer to a one-token request within 5s",
			after: 46 * time.Second, during: func(_ *replicaRun, s *busyEngine) {
				s.serve(true, plainSince(time.Now()))
				time.Sleep(30 * time.Second)
				s.busy.Store(nil)
			}},
		{name: "a request hangs", why: "hung: no byte for 2m0s with 1 requests running (deadlines.firstToken: 2m0s); then no answer",
			after: 126 * time.Second, during: func(_ *replicaRun, s *busyEngine) {
				s.serve(true, plainSince(time.Now()))
			}},
		{name: "a stream hangs", why: "hung: no byte for 10s with 1 requests running (deadlines.hang: 10s); then no answer",
			after: 16 * time.Second, during: func(_ *replicaRun, s *busyEngine) {
				last := time.Now()
				s.serve(true, func(time.Time) functions.Traffic { return functions.Traffic{InFlight: 1, LastByte: last} })
			}},
		{name: "it hangs without requests", why: "hung: /metrics not answered for 10s (deadlines.hang: 10s); then no answer",
			after: 16 * time.Second, during: func(_ *replicaRun, s *busyEngine) {
				s.serve(true, nil)
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newBusyEngine()
				o := s.options()
				var ended []string
				o.AbortRequests = func(_, reason string) {
					if s.killed.Load() == 0 {
						ended = append(ended, reason)
					}
				}
				l := startReplica(t, o, New)
				time.Sleep(time.Minute)
				expectState(t, l, functions.Ready)
				began := time.Now()
				c.during(l, s)
				if c.why == "" {
					time.Sleep(time.Minute)
					expectState(t, l, functions.Ready)
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
					return
				}
				l.ended(t, functions.Failed, c.why)
				if d := time.Since(began); d > c.after {
					t.Errorf("found after %s", d)
				}
				if len(ended) != 1 || !strings.Contains(ended[0], "no answer") {
					t.Errorf("requests ended before the kill: %q", ended)
				}
			})
		})
	}
}

// TestAnswersToProbes: an engine that answers each probe with an error is given up at the third,
// and one that is busy goes on serving, also where its /health is an error.
func TestAnswersToProbes(t *testing.T) {
	for _, unhealthy := range []bool{false, true} {
		for _, status := range []int{400, 401, 403, 404, 422, 429, 500, 501, 502, 503, 504} {
			t.Run(fmt.Sprint(status, " unhealthy: ", unhealthy), func(t *testing.T) {
				busy := status == 429 || status == 503
				s := &fakeNode{}
				var refuses atomic.Bool
				s.tokenErr = func(int64) error {
					if refuses.Load() {
						return &engine.StatusError{Status: status, Body: "no"}
					}
					return nil
				}
				virtual(t, s, func(t *testing.T, l *replicaRun) {
					time.Sleep(time.Second)
					refuses.Store(true)
					s.unhealthy.Store(unhealthy)
					for range 4 * probeTries {
						l.Suspect("a request failed")
						time.Sleep(time.Second)
					}
					if !busy {
						l.ended(t, functions.Failed, fmt.Sprint("HTTP ", status))
						return
					}
					expectState(t, l, functions.Ready)
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
				})
			})
		}
	}
}
