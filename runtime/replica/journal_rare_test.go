package replica

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// waitingMetrics are those of an engine whose only request waits.
func waitingMetrics() (engine.Metrics, error) { return engine.Metrics{Load: true, Waiting: 1}, nil }

// confined gives an engine bounds.
func confined(o *Options) {
	o.Confine = func(*engine.Command, engine.Request) (*confine.Plan, error) { return &confine.Plan{}, nil }
}

// loads loads adapters, a second after each other.
func loads(j *journal, r *Replica, names ...string) {
	for _, name := range names {
		j.load(context.Background(), r, name)
		pause(time.Second - besideReport)
	}
}

// rareJournals are more scenes of TestJournals.
var rareJournals = map[string]scene{
	// Adapters.
	"adapters end with a deep sleep": {change: adapters, play: func(j *journal, r *Replica) {
		loads(j, r, "a")
		sleepAndWake(2, unloadAfter(time.Second))(j, r)
	}},
	"adapters stay with a deep sleep": {change: adapters, play: func(j *journal, r *Replica) {
		loads(j, r, "a")
		j.keep = &engine.StatusError{Status: http.StatusInternalServerError, Body: "busy"}
		sleepAndWake(2, unloadAfter(time.Second))(j, r)
	}},
	"an adapter without a lease": {change: func(o *Options) {
		adapters(o)
		o.Spec.Adapters[0].Source = "a/"
	}, play: func(j *journal, r *Replica) {
		loads(j, r, "a", "kv")
		unloadAfter(time.Second)(j, r)
	}},
	"adapters end with their engine": {change: adapters, play: func(j *journal, r *Replica) {
		loads(j, r, "a")
		dieAfter(time.Second, supervisor.Exit{Code: 1})(j, r)
	}},
	"adapters end as they are loaded": {change: adapters, play: func(j *journal, r *Replica) {
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			j.load(context.Background(), r, "a")
		}()
		pause(500 * time.Millisecond)
		r.Unload(time.Millisecond, "stopped")
		<-loaded
	}},
	"adapters end asleep": {change: adapters, play: func(j *journal, r *Replica) {
		loads(j, r, "a")
		r.Sleep(1, "idle")
		unloadAfter(5*time.Second)(j, r)
	}},
	"its engine falls asleep as an adapter is unloaded": {change: adapters, play: func(j *journal, r *Replica) {
		loads(j, r, "a")
		j.unloadTime, j.keep = 5*time.Second, &engine.StatusError{Status: http.StatusInternalServerError, Body: "busy"}
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			j.load(context.Background(), r, "kv")
		}()
		pause(2 * time.Second)
		r.Sleep(1, "idle")
		<-loaded
		r.WakeUp("asked for")
		pause(time.Second)
		loads(j, r, "a")
		unloadAfter(time.Second)(j, r)
	}},
	"more adapters than slots": {change: func(o *Options) {
		adapters(o)
		o.Spec.Adapters = append(o.Spec.Adapters, functions.Adapter{Name: "a2", Source: "a", Files: []string{"*.txt"}},
			functions.Adapter{Name: "a3", Source: "a"})
		o.Spec.Args = []string{"--max-loras", "2"}
	}, play: func(j *journal, r *Replica) {
		loads(j, r, "a", "kv", "a", "a2", "a3")
		j.keep = &engine.StatusError{Status: http.StatusNotFound, Body: "no such adapter"}
		loads(j, r, "kv")
		j.keep = &engine.StatusError{Status: http.StatusInternalServerError, Body: "busy"}
		loads(j, r, "a", "a2", "a3", "kv", "a", "a2") // what is left is of one source: its leases end in any order
		unloadAfter(time.Second)(j, r)
	}},
	"adapters that do not fit": {change: func(o *Options) {
		adapters(o)
		o.Spec.Adapters = []functions.Adapter{{Name: "rank", Source: "a", Rank: 4}, {Name: "none", Source: "none"}, {Name: "a", Source: "a", Rank: 8}}
	}, play: func(j *journal, r *Replica) {
		loads(j, r, "rank", "none")
		for _, status := range []int{400, 404, 409, 422, 500, 503} {
			j.refuse = &engine.StatusError{Status: status, Body: "no"}
			loads(j, r, "a")
		}
		j.refuse = errors.New("connection refused")
		loads(j, r, "a")
		j.refuse = &engine.StatusError{Status: 409, Body: "It has already been loaded."}
		loads(j, r, "a")
		j.refuse = &engine.StatusError{Status: 400, Body: "The lora adapter 'a' has already been loaded."}
		loads(j, r, "a")
		unloadAfter(time.Second)(j, r)
	}},
	"an adapter in place of a model": {change: func(o *Options) { o.Spec.Source = "a" }},

	// Sleep.
	"sleeps at no level": {change: sleeps, play: func(j *journal, r *Replica) {
		r.Sleep(0, "idle")
		pause(5 * time.Second)
		r.WakeUp("asked for")
		unloadAfter(5*time.Second)(j, r)
	}},
	"a request waits in an engine that sleeps": {change: sleeps, play: func(j *journal, r *Replica) {
		r.Sleep(1, "idle")
		pause(5 * time.Second)
		j.setMetrics(waitingMetrics)
		pause(5 * time.Second)
		j.setMetrics(nil)
		unloadAfter(5*time.Second)(j, r)
	}},
	"a request waits before its sleep": {node: func() *fakeNode { return &fakeNode{metrics: waitingMetrics} }, change: sleeps,
		play: func(j *journal, r *Replica) {
			r.Sleep(1, "idle")
			pause(5 * time.Second)
			j.setMetrics(nil)
			unloadAfter(5*time.Second)(j, r)
		}},
	"a request waits while it is drained": {node: func() *fakeNode { return &fakeNode{metrics: waitingMetrics} },
		play: func(j *journal, r *Replica) {
			r.Unload(10050*time.Millisecond, "evicted")
			pause(5 * time.Second)
			j.setMetrics(nil)
		}},
	"wakes, and sleeps again": {node: func() *fakeNode { return &fakeNode{wakeTime: time.Second} }, change: sleeps,
		play: func(j *journal, r *Replica) {
			for range 2 {
				r.Sleep(1, "idle")
				pause(5 * time.Second)
				r.WakeUp("asked for")
				pause(300 * time.Millisecond)
				r.Sleep(2, "too early") // while it wakes
				pause(5 * time.Second)
				r.WakeUp("asked for again")
				pause(5 * time.Second)
			}
			unloadAfter(5*time.Second)(j, r)
		}},
	"its sleep is unloaded": {node: func() *fakeNode { return &fakeNode{sleepTime: 5 * time.Second} }, change: sleeps,
		play: func(j *journal, r *Replica) {
			r.Sleep(1, "idle")
			unloadAfter(time.Second)(j, r)
		}},

	// Files.
	"confined, and sleeps": {early: &arrival{after: 5100 * time.Millisecond}, change: func(o *Options) { sleeps(o); confined(o) },
		play: unloadAfter(20 * time.Second)},
	"confined": {early: &arrival{after: 5100 * time.Millisecond}, change: confined, play: unloadAfter(20 * time.Second)},
	"its log has an earlier start": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} },
		play: func(j *journal, r *Replica) {
			pause(time.Second)
			j.write("ValueError: of the first start\n")
			j.die(supervisor.Exit{Code: 1, Tail: "OSError: [Errno 98] Address already in use"})
			pause(time.Second)
			j.write("RuntimeError: of the second start\n")
			j.die(supervisor.Exit{Code: 1, Tail: "x"})
		}},
	"unloaded while its damaged file is staged again": {node: func() *fakeNode {
		return &fakeNode{stageTime: 10100 * time.Millisecond, loadTime: 10 * time.Second}
	}, play: func(j *journal, r *Replica) {
		j.damaged.Store(true)
		dieAfter(15*time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})(j, r)
		pause(3 * time.Second)
		r.Unload(time.Minute, "stopped")
	}},
	"a cache that is not stored": {early: &arrival{after: time.Second}, play: func(j *journal, r *Replica) {
		j.full.Store(true)
		agentEnds(5*time.Second)(j, r)
	}},
	"files that cannot be opened early": {early: &arrival{refused: errors.New("no FUSE here")}},
	"cannot be forked": {node: func() *fakeNode { return &fakeNode{spawnErr: errors.New("no such program")} },
		change: parent("/run/parent", "")},
	"the log has a taken port each time": {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: func(j *journal, r *Replica) {
			for range portTries {
				pause(time.Second)
				j.write("OSError: [Errno 98] Address already in use\nERROR [x.py:1] EngineCore failed to start.\n")
			}
		}},

	"its stager ends by itself": {node: func() *fakeNode { return &fakeNode{stageErr: context.Canceled} }},
	"confined, and may not read": {node: func() *fakeNode { return &fakeNode{loadTime: time.Minute} }, change: confined,
		play: dieAfter(time.Second, supervisor.Exit{Code: 1, Tail: "PermissionError: [Errno 13] Permission denied: '/data/x'"})},
	"notifies, and its token is late": {node: func() *fakeNode {
		began := time.Now()
		return &fakeNode{loadTime: time.Hour, tokenErr: func(int64) error {
			if time.Since(began) < 10*time.Second {
				return &engine.StatusError{Status: 503, Body: "loading"}
			}
			return nil
		}}
	}, begin: notices([]engine.Notice{{Percent: 10}, {Percent: -1, Ready: true}, {Percent: 20}}), play: unloadAfter(20 * time.Second)},

	// The watch.
	"its metrics are silent from the start": {node: func() *fakeNode { return &fakeNode{loadTime: time.Second} },
		play: func(j *journal, r *Replica) {
			j.silent.Store(true)
			unloadAfter(30*time.Second)(j, r)
		}},
	"drained without metrics, and the owner counts none": {change: func(o *Options) { o.InFlight = func() int { return 0 } },
		play: silently(func(_ *journal, r *Replica) { r.Unload(1050*time.Millisecond, "evicted") })},
	"dies of a file as it is ready": {play: dieAfter(time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})},
	"awake, and answers with errors": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return &engine.StatusError{Status: 500, Body: "no"}
			}
			return nil
		}}
	}, change: sleeps, play: sleepAndWake(1)},
	"adopted without a source": {change: func(o *Options) { o.Spec.Source = "" }, adopt: earlier(time.Hour), play: unloadAfter(5 * time.Second)},
	"wakes from a deep sleep beyond its start": {node: func() *fakeNode { return &fakeNode{wakeTime: 20 * time.Second} },
		change: func(o *Options) { sleeps(o); o.Spec.Deadlines.Start = functions.Duration(10 * time.Second) },
		play:   sleepAndWake(2, unloadAfter(25*time.Second))},
	"adopted, and its sleep is not known":  {node: hungNode, change: sleeps, adopt: earlier(time.Hour)},
	"adopted from a stager of early files": {early: &arrival{after: time.Second}, adopt: earlier(time.Hour), play: unloadAfter(5 * time.Second)},
	"dies as it wakes": {node: func() *fakeNode { return &fakeNode{wakeErr: errors.New("connection refused")} }, change: sleeps,
		play: sleepAndWake(1, dieAfter(100*time.Millisecond, supervisor.Exit{Code: 1, Tail: "ValueError: x"}))},
	"answers probes with errors beside requests": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return &engine.StatusError{Status: 500, Body: "no"}
			}
			return nil
		}}
	}, change: func(o *Options) {
		o.Traffic = func(string) functions.Traffic { return functions.Traffic{InFlight: 1, LastByte: time.Now()} }
	}, play: func(j *journal, r *Replica) {
		for range probeTries {
			pause(time.Second)
			r.Suspect("a request failed")
		}
		unloadAfter(5*time.Second)(j, r)
	}},
	"its core dies, and it refuses a probe": {node: func() *fakeNode {
		return &fakeNode{lastWords: "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", tokenErr: func(n int64) error {
			if n > 1 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
	}, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Suspect("a request failed")
	}},
	"its metrics are silent, and it works": {play: func(j *journal, r *Replica) {
		j.silent.Store(true)
		unloadAfter(30*time.Second)(j, r)
	}},
	"has no metrics, and its requests wait": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) { return engine.Metrics{}, engine.ErrNoMetrics }}
	}, change: func(o *Options) {
		began := time.Now()
		o.Traffic = func(string) functions.Traffic {
			return functions.Traffic{InFlight: 1, Waiting: began, LastByte: began}
		}
	}, play: unloadAfter(5 * time.Minute)},
	"adopted with requests": {node: busyNode, adopt: earlier(time.Hour), play: func(j *journal, r *Replica) {
		pause(time.Minute)
		j.setMetrics(func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Flow: true, Counted: true, Running: 1, FirstTokens: 3, Finished: 2, Tokens: 7}, nil
		})
		unloadAfter(4*time.Minute)(j, r)
	}},
	"long prompts after requests": {play: func(j *journal, r *Replica) {
		pause(time.Second)
		metrics := func(running, first, finished int, tokens float64) {
			j.setMetrics(func() (engine.Metrics, error) {
				return engine.Metrics{Load: true, Flow: true, Counted: true, Running: running, FirstTokens: first, Finished: finished,
					Tokens: tokens}, nil
			})
		}
		metrics(0, 5, 4, 100) // a request that was aborted has no end
		pause(time.Minute)
		metrics(1, 5, 4, 100)
		pause(5 * time.Minute)
		metrics(1, 6, 4, 101)
		pause(5 * time.Minute)
		metrics(0, 6, 5, 101)
		unloadAfter(time.Minute)(j, r)
	}},
	"busy as it is ready": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Flow: true, Counted: true, Running: 1, FirstTokens: 1, Tokens: 7}, nil
		}}
	}, play: unloadAfter(30 * time.Second)},
	"requests come as it is drained": {play: silently(func(j *journal, r *Replica) {
		r.Unload(3050*time.Millisecond, "evicted")
		pause(time.Second)
		j.setMetrics(busyMetrics)
		j.silent.Store(false)
	})},
	"suspected twice": {play: func(j *journal, r *Replica) {
		for range 2 {
			r.Suspect("a request failed")
			pause(time.Second)
		}
		j.hang.Store(true)
		r.Suspect("another one")
		pause(time.Second)
		r.Suspect("meanwhile")
	}},
	"probes fail beside requests": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
	}, change: func(o *Options) {
		o.Traffic = func(string) functions.Traffic { return functions.Traffic{InFlight: 1, LastByte: time.Now()} }
	}, play: func(j *journal, r *Replica) {
		pause(time.Second)
		r.Suspect("a request failed")
		unloadAfter(5*time.Second)(j, r)
	}},
}
