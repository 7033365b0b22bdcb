package replica

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// journals are the scenes of TestJournals. Each is short; rare ones are more than usual ones.
var journals = map[string]scene{
	"start and end": {node: func() *fakeNode {
		return &fakeNode{stageTime: 10100 * time.Millisecond, loadTime: 4 * time.Second}
	}, play: func(j *journal, r *Replica) {
		pause(20 * time.Second)
		r.Unload(30*time.Second, "idle")
	}},
	"wrong bytes": {node: func() *fakeNode {
		return &fakeNode{stageTime: 1010 * time.Millisecond, stageErr: errors.New("digest mismatch")}
	}},
	"too slow": {node: func() *fakeNode { return &fakeNode{stageTime: 3*time.Hour + 100*time.Millisecond} }},
	"cancelled": {node: func() *fakeNode {
		return &fakeNode{stageTime: time.Minute}
	}, play: func(j *journal, r *Replica) { pause(3 * time.Second); r.CancelStart() }},
	"cancelled too late": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} }, play: func(j *journal, r *Replica) {
		pause(time.Second)
		r.CancelStart()
		pause(10 * time.Second)
		r.Unload(time.Millisecond, "stopped")
	}},
	"unloaded while it loads": {node: func() *fakeNode {
		return &fakeNode{loadTime: time.Minute}
	}, play: func(j *journal, r *Replica) { pause(time.Second); r.Unload(time.Minute, "stopped") }},
	"cannot be started":            {node: func() *fakeNode { return &fakeNode{spawnErr: errors.New("no such program")} }},
	"spawned as if it were forked": {node: func() *fakeNode { return &fakeNode{spawnErr: supervisor.ErrNoParent} }},
	"never ready":                  {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} }},
	"dies while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: time.Minute} }, play: func(j *journal, r *Replica) {
		pause(10 * time.Second)
		j.die(supervisor.Exit{Code: 1, Tail: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."})
	}},
	"no first token": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(int64) error { return &engine.StatusError{Status: 500, Body: "no"} }}
	}},
	"dies": {play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		j.die(supervisor.Exit{Code: -1, Signal: syscall.SIGSEGV, Tail: "Segmentation fault"})
	}},
	"hangs": {play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		j.hang.Store(true)
		r.Suspect("a request failed")
	}},
	"suspected, and works": {play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Suspect("a request failed")
		pause(10 * time.Second)
		r.Unload(time.Millisecond, "stopped")
	}},
	"drains": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Running: 2, Waiting: 1, HitRate: 0.5}, nil
		}}
	}, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Unload(10050*time.Millisecond, "evicted")
	}},
	"ignores SIGTERM": {node: func() *fakeNode {
		return &fakeNode{ignored: map[syscall.Signal]bool{syscall.SIGTERM: true}}
	}, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Unload(time.Millisecond, "evicted")
	}},
	"sleeps and wakes": {node: func() *fakeNode {
		return &fakeNode{sleepTime: 2 * time.Second, wakeTime: time.Second}
	}, change: sleeps, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Sleep(1, "idle")
		pause(10 * time.Second)
		r.WakeUp("a request waits")
		pause(10 * time.Second)
		r.Sleep(2, "idle")
		pause(10 * time.Second)
		r.Unload(time.Millisecond, "stopped")
	}},
	"does not wake": {node: func() *fakeNode {
		return &fakeNode{wakeErr: errors.New("no memory")}
	}, change: sleeps, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Sleep(1, "idle")
		pause(10 * time.Second)
		r.WakeUp("a request waits")
	}},
	"dies asleep": {change: sleeps, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Sleep(1, "idle")
		pause(10 * time.Second)
		j.die(supervisor.Exit{Code: 1})
	}},
	"cannot sleep": {play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Sleep(1, "idle")
		pause(5 * time.Second)
		r.Unload(time.Millisecond, "stopped")
	}},
	"no free memory": {change: func(o *Options) {
		o.Spec.Resources.GPUMemory = 40 << 30
		o.FreeGPU = func(int) (functions.Bytes, bool) { return 10 << 30, true }
		o.GPUHolders = func(int) string { return "python (pid 7)" }
	}},
	// The agent ends: the process stays with the supervisor.
	"agent ends while it is staged": {node: func() *fakeNode { return &fakeNode{stageTime: time.Hour} }, play: agentEnds(time.Second)},
	"agent ends while it loads":     {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} }, play: agentEnds(time.Second)},
	"agent ends while it is ready":  {play: agentEnds(time.Second)},
	"agent ends while it is probed": {play: func(j *journal, r *Replica) {
		j.hang.Store(true)
		r.Suspect("x")
		agentEnds(time.Second)(j,
			r)
	}},
	"agent ends while it is drained": {node: busyNode,
		play: func(j *journal, r *Replica) { r.Unload(time.Minute, "x"); agentEnds(time.Second)(j, r) }},
	"agent ends while it falls asleep": {node: busyNode, change: sleeps, play: func(j *journal, r *Replica) {
		r.Sleep(1, "x")
		agentEnds(time.Second)(j, r)
	}},
	"agent ends while it sleeps": {change: sleeps, play: func(j *journal, r *Replica) { r.Sleep(1, "x"); agentEnds(time.Second)(j, r) }},
	"agent ends while it wakes": {node: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, change: sleeps,
		play: func(j *journal, r *Replica) {
			r.Sleep(1, "x")
			pause(time.Second)
			r.WakeUp("y")
			agentEnds(time.Second)(j, r)
		}},
	"agent ends while it waits for memory": {change: noMemory(time.Hour), play: agentEnds(time.Second)},
	"agent ends while files arrive":        {early: &arrival{after: time.Hour}, play: agentEnds(time.Second)},

	// A checkpoint whose files can be opened before all are here.
	"the last byte comes first": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} },
		early: &arrival{after: 3 * time.Second}, play: unloadAfter(20 * time.Second)},
	"the last byte comes late": {early: &arrival{after: 5100 * time.Millisecond}, play: unloadAfter(20 * time.Second)},
	"all bytes are here":       {early: &arrival{complete: true}, play: unloadAfter(20 * time.Second)},
	"wrong bytes arrive":       {early: &arrival{after: 5100 * time.Millisecond, err: errors.New("digest mismatch")}},
	"bytes arrive too slowly":  {early: &arrival{after: 3 * time.Hour}},
	"unloaded while files arrive": {early: &arrival{after: time.Hour}, node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: unloadAfter(5 * time.Second)},
	"dies while files arrive": {early: &arrival{after: time.Hour},
		play: dieAfter(5*time.Second, supervisor.Exit{Code: 1, Tail: "ValueError: x"})},
	"dies of files that do not arrive": {early: &arrival{after: 5100 * time.Millisecond, err: errors.New("connection reset")},
		node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: dieAfter(4800*time.Millisecond, supervisor.Exit{Code: 1, Tail: "OSError: read"})},
	"dies before the last byte": {early: &arrival{after: 5100 * time.Millisecond},
		node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: dieAfter(4900*time.Millisecond, supervisor.Exit{Code: 1, Tail: "ValueError: no kernel"})},
	"dies of a damaged file that arrived": {early: &arrival{after: 5100 * time.Millisecond},
		node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} },
		play: func(j *journal, r *Replica) {
			j.damaged.Store(true)
			dieAfter(7*time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})(j, r)
			unloadAfter(time.Minute)(j, r)
		}},
	"the start's time counts from the last byte": {early: &arrival{after: 20 * time.Minute},
		node: func() *fakeNode { return &fakeNode{loadTime: 3 * time.Hour} }},
	"unloaded as the last byte comes": {early: &arrival{after: time.Hour, whole: true},
		node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: unloadAfter(2000 * time.Second)},
	"no cache is stored twice": {early: &arrival{after: time.Second}, change: sleeps, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Sleep(1, "idle")
		pause(5 * time.Second)
		r.WakeUp("asked for")
		unloadAfter(5*time.Second)(j, r)
	}},
	"unloaded while its caches are stored": {play: unloadAfter(200 * time.Millisecond)},

	// An earlier agent started the process.
	"adopted": {adopt: earlier(time.Hour), play: unloadAfter(5 * time.Second)},
	"adopted asleep": {node: asleepNode, adopt: earlier(time.Hour), change: sleeps, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.WakeUp("asked for")
		unloadAfter(5*time.Second)(j, r)
	}},
	"adopted, and awake":     {adopt: earlier(time.Hour), change: sleeps, play: unloadAfter(5 * time.Second)},
	"adopted, and silent":    {node: hungNode, adopt: earlier(time.Hour)},
	"adopted while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: 3 * time.Hour} }, adopt: earlier(time.Minute)},
	"adopted without files": {node: func() *fakeNode { return &fakeNode{stageTime: time.Hour} }, adopt: earlier(time.Hour),
		play: unloadAfter(time.Minute)},
	"adopted and died": {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} }, adopt: earlier(time.Hour),
		play: dieAfter(time.Second, supervisor.Exit{Lost: true, Tail: "ValueError: x"})},

	// Adapters.
	"adapters": {change: adapters, play: func(j *journal, r *Replica) {
		load := func(name string) {
			j.load(context.Background(), r, name)
			pause(time.Second - besideReport)
		}
		load("a")
		load("kv")
		load("kv")
		load("none")
		j.keep = &engine.StatusError{Status: 500, Body: "busy"}
		load("a")
		j.refuse = &engine.StatusError{Status: 500, Body: "no"}
		load("a")
		r.Sleep(2, "idle")
		pause(time.Second)
		load("kv")
		r.WakeUp("asked for")
		pause(time.Second)
		load("kv")
		r.Sleep(1, "idle")
		pause(time.Second)
		r.WakeUp("asked for")
		pause(time.Second)
		load("kv")
		ctx, cancel := context.WithTimeoutCause(context.Background(), 500*time.Millisecond, errors.New("the client left"))
		defer cancel()
		j.load(ctx, r, "a")
		load("a")
		unloadAfter(time.Second)(j, r)
		load("a")
	}},
	"adapter staged too slowly": {change: func(o *Options) {
		adapters(o)
		o.Spec.Deadlines.Stage = functions.Duration(500 * time.Millisecond)
	},
		play: func(j *journal, r *Replica) {
			j.load(context.Background(), r, "a")
			unloadAfter(time.Second)(j, r)
		}},

	// A file is damaged.
	"a damaged file": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} }, play: func(j *journal, r *Replica) {
		j.damaged.Store(true)
		j.verifyTime = 3 * time.Second
		dieAfter(5*time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})(j, r)
		dieAfter(8*time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})(j, r)
	}},
	"no file is damaged": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} },
		play: dieAfter(5*time.Second, supervisor.Exit{Code: -1, Signal: syscall.SIGBUS})},
	"cancelled while it is verified": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} },
		play: func(j *journal, r *Replica) {
			j.verifyTime = time.Hour
			dieAfter(5*time.Second, supervisor.Exit{Code: -1, Signal: syscall.SIGBUS})(j, r)
			pause(time.Second)
			r.CancelStart()
		}},
	"agent ends while it is verified": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} },
		play: func(j *journal, r *Replica) {
			j.verifyTime = time.Hour
			dieAfter(5*time.Second, supervisor.Exit{Code: -1, Signal: syscall.SIGBUS})(j, r)
			agentEnds(time.Second)(j, r)
		}},
	"verified too slowly": {node: func() *fakeNode { return &fakeNode{loadTime: 10 * time.Second} }, play: func(j *journal, r *Replica) {
		j.verifyTime = 2 * time.Hour
		dieAfter(5*time.Second, supervisor.Exit{Code: 1, Tail: "SafetensorError: HeaderTooLarge"})(j, r)
	}},

	// Starts.
	"forked": {change: parent("/run/parent", "of a plain start"), play: unloadAfter(5 * time.Second)},
	"the parent cannot fork": {node: func() *fakeNode { return &fakeNode{noParent: true} }, change: parent("/run/parent", ""),
		play: unloadAfter(5 * time.Second)},
	"no parent":             {change: parent("", "no such parent"), play: unloadAfter(5 * time.Second)},
	"waits for the parent":  {change: parentAfter(30 * time.Second), play: unloadAfter(40 * time.Second)},
	"the parent comes late": {change: parentAfter(time.Hour), play: unloadAfter(2*time.Minute + time.Second)},
	"cancelled while it waits for the parent": {change: parentAfter(time.Hour), play: func(j *journal, r *Replica) {
		pause(time.Second)
		r.Suspect("x") // no reason to go on
		pause(time.Second)
		r.CancelStart()
	}},
	"memory is freed":                    {change: noMemory(10*time.Second + time.Millisecond), play: unloadAfter(20 * time.Second)},
	"unloaded while it waits for memory": {change: noMemory(time.Hour), play: unloadAfter(10 * time.Second)},
	"the port is taken": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} }, play: func(j *journal, r *Replica) {
		for range 3 {
			dieAfter(time.Second, supervisor.Exit{Code: 1, Tail: "OSError: [Errno 98] Address already in use"})(j, r)
		}
	}},
	"the port is taken, and the time is over": {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} },
		play: func(j *journal, r *Replica) {
			dieAfter(9*time.Minute, supervisor.Exit{Code: 1, Tail: "OSError: [Errno 98] Address already in use"})(j, r)
		}},
	"killed while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} },
		play: dieAfter(time.Second, supervisor.Exit{Code: -1, Signal: syscall.SIGKILL, Tail: "ValueError: x"})},
	"ended while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} },
		play: dieAfter(time.Second, supervisor.Exit{Code: -1, Signal: syscall.SIGTERM, Tail: "ValueError: x"})},
	"lost while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} },
		play: dieAfter(time.Second, supervisor.Exit{Code: 1, Lost: true, Tail: "ValueError: x"})},
	"busy at first": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			switch {
			case n < 8:
				return &engine.StatusError{Status: 503, Body: "loading"}
			case n < 12:
				return errors.New("EOF")
			}
			return nil
		}}
	}, play: func(j *journal, r *Replica) {
		pause(time.Second)
		j.write("Loading safetensors checkpoint shards:  50% Completed | 1/2\r") // an old line
		unloadAfter(30*time.Second)(j, r)
	}},
	"refuses its key": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error { return &engine.StatusError{Status: 401, Body: "no"} }}
	}},
	"refuses its key now and then": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			switch {
			case n > 40:
				return nil
			case n%8 == 0:
				return &engine.StatusError{Status: 500, Body: "no"}
			}
			return &engine.StatusError{Status: 401, Body: "no"}
		}}
	}, play: unloadAfter(time.Minute)},
	"the log has the steps": {node: func() *fakeNode { return &fakeNode{loadTime: 20 * time.Second} }, play: func(j *journal, r *Replica) {
		for _, line := range []string{"non-default args: {}\n", "a line\n", "INFO [x.py:1] Starting to load model m\n",
			"Loading safetensors checkpoint shards:  25% Completed | 1/4\r", "Loading safetensors checkpoint shards:  50% Completed | 2/4\r",
			"INFO [x.py:1] Model loading took 2 GiB\n", "INFO [x.py:1] Starting to load model m\n",
			"INFO [x.py:1] Compiling a graph\n", "INFO [x.py:1] torch.compile takes 1 s\n",
			"INFO [x.py:1] init engine (profile, create kv cache, warmup model) took 3 s\n"} {
			j.write(line)
			pause(time.Second)
		}
		pause(20 * time.Second)
		j.write("Loading safetensors checkpoint shards:  75% Completed | 3/4\r")
		unloadAfter(time.Second)(j, r)
	}},
	"the log has progress alone": {node: func() *fakeNode { return &fakeNode{loadTime: 20 * time.Second} },
		play: func(j *journal, r *Replica) {
			for i := range 10 { // more often than is reported
				j.write(fmt.Sprintf("Loading safetensors checkpoint shards:  %d%% Completed | 1/4\r", 10*i))
				pause(90 * time.Millisecond)
			}
			pause(time.Second)
			j.write("Loading safetensors checkpoint shards:  90% Completed | 1/4\r") // once more
			unloadAfter(time.Minute)(j, r)
		}},
	"the log has a failure": {node: func() *fakeNode { return &fakeNode{loadTime: 20 * time.Second} }, play: func(j *journal, r *Replica) {
		pause(time.Second)
		j.write("ValueError: no kernel\nERROR [x.py:1] EngineCore failed to start.\n")
		pause(100 * time.Millisecond)
		j.write("ERROR [x.py:1] EngineCore failed to start.\n")
	}},
	"the log has a failure, and it exits": {node: func() *fakeNode { return &fakeNode{loadTime: 20 * time.Second} },
		play: func(j *journal, r *Replica) {
			pause(time.Second)
			j.write("ERROR [x.py:1] EngineCore failed to start.\n")
			dieAfter(200*time.Millisecond, supervisor.Exit{Code: 1, Tail: "ValueError: no kernel"})(j, r)
		}},
	"the log has a taken port": {node: func() *fakeNode { return &fakeNode{loadTime: 20 * time.Second} }, play: func(j *journal, r *Replica) {
		pause(time.Second)
		j.write("OSError: [Errno 98] Address already in use\nERROR [x.py:1] EngineCore failed to start.\n")
		unloadAfter(time.Minute)(j, r)
	}},
	"it notifies": {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} }, begin: notices([]engine.Notice{
		{Percent: -1, Status: "begins"}, {Percent: 0}, {Percent: 10}, {Percent: 60}, {Percent: -1, Ready: true}, {Percent: 20}}),
		play: unloadAfter(20 * time.Second)},
	"it stops notifying": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} },
		begin: notices([]engine.Notice{{Percent: 10}}),
		play:  unloadAfter(20 * time.Second)},

	// Hangs, probes and drains.
	"hangs beside requests": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Flow: true, Running: 2, Waiting: 1, Tokens: 7}, nil
		}}
	}, play: func(j *journal, r *Replica) { pause(20 * time.Second); j.hang.Store(true) }},
	"its requests stop": {play: func(j *journal, r *Replica) {
		tokens := 0.0
		j.setMetrics(func() (engine.Metrics, error) {
			if tokens < 30 {
				tokens++
			}
			return engine.Metrics{Load: true, Flow: true, Running: 1, Tokens: tokens, HitRate: 0.25}, nil
		})
		pause(5 * time.Second)
		j.hang.Store(true)
	}},
	"its core dies": {node: func() *fakeNode {
		return &fakeNode{lastWords: "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."}
	}, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		j.hang.Store(true)
		r.Suspect("a request failed")
	}},
	"dies after the probe": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
			}
			return nil
		}}
	}, play: func(j *journal, r *Replica) {
		pause(5 * time.Second)
		r.Suspect("a request failed")
		dieAfter(40*time.Millisecond, supervisor.Exit{Code: 1, Tail: "ValueError: x"})(j, r)
	}},
	"answers with errors": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 && n != 4 {
				return &engine.StatusError{Status: 500, Body: "no"}
			}
			return nil
		}}
	}, play: func(j *journal, r *Replica) {
		for range 6 {
			pause(2 * time.Second)
			r.Suspect("a request failed")
		}
	}},
	"unhealthy, and works": {play: func(j *journal, r *Replica) {
		pause(2 * time.Second)
		j.unhealthy.Store(true)
		pause(2 * time.Second)
		j.unhealthy.Store(false)
		unloadAfter(2*time.Second)(j, r)
	}},
	"its requests stop, and a probe is an error": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return &engine.StatusError{Status: 500, Body: "no"}
			}
			return nil
		}}
	}, play: func(j *journal, r *Replica) {
		j.setMetrics(func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Flow: true, Running: 1, Tokens: 7}, nil
		})
	}},
	"idle after requests": {play: func(j *journal, r *Replica) {
		tokens := 0.0
		j.setMetrics(func() (engine.Metrics, error) {
			tokens++
			return engine.Metrics{Load: true, Flow: true, Running: 1, Tokens: tokens}, nil
		})
		pause(3 * time.Second)
		j.setMetrics(nil)
		unloadAfter(5*time.Second)(j, r)
	}},
	"unloaded while metrics are read":   {play: silently(unloadAfter(time.Second))},
	"agent ends while metrics are read": {play: silently(agentEnds(time.Second))},
	"drained without metrics":           {play: silently(func(_ *journal, r *Replica) { r.Unload(1050*time.Millisecond, "evicted") })},
	"asleep without metrics": {change: sleeps, play: func(j *journal, r *Replica) {
		r.Sleep(1, "idle")
		silently(unloadAfter(5*time.Second))(j, r)
	}},
	"falls asleep without metrics": {change: sleeps, play: silently(func(j *journal, r *Replica) {
		r.Sleep(1, "idle")
		unloadAfter(5*time.Second)(j, r)
	})},
	"drained in time": {node: busyNode, play: func(j *journal, r *Replica) {
		pause(2 * time.Second)
		r.Unload(time.Minute, "evicted")
		pause(time.Second)
		r.Unload(30050*time.Millisecond, "evicted twice")
		pause(time.Second)
		r.CancelStart()
		r.Sleep(1, "x")
		pause(time.Second)
		j.setMetrics(nil)
	}},
	"dies while it is drained": {node: busyNode, play: func(j *journal, r *Replica) {
		pause(2 * time.Second)
		r.Unload(time.Minute, "evicted")
		dieAfter(time.Second, supervisor.Exit{Code: 1, Tail: "ValueError: x"})(j, r)
	}},
	"only the owner counts": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) { return engine.Metrics{}, engine.ErrNoMetrics }}
	}, change: func(o *Options) {
		n := 30
		o.InFlight = func() int { n--; return max(n, 0) }
	}, play: unloadAfter(2 * time.Second)},
	"the owner's requests are aborted": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) { return engine.Metrics{}, engine.ErrNoMetrics }}
	}, change: func(o *Options) { o.InFlight = func() int { return 3 } }, play: func(j *journal, r *Replica) {
		pause(2 * time.Second)
		r.Unload(1050*time.Millisecond, "evicted")
	}},
	"SIGKILL is ignored too": {node: func() *fakeNode {
		return &fakeNode{ignored: map[syscall.Signal]bool{syscall.SIGTERM: true, syscall.SIGKILL: true}}
	}, play: unloadAfter(time.Second)},

	// Sleep.
	"drained before its sleep": {node: busyNode, change: sleeps, play: func(j *journal, r *Replica) {
		pause(time.Second)
		r.Sleep(1, "idle")
		pause(10 * time.Second)
		j.setMetrics(nil)
		pause(5 * time.Second)
		r.Sleep(2, "again") // it sleeps
		pause(time.Second)
		j.setMetrics(busyMetrics)
		pause(5 * time.Second)
		j.setMetrics(nil)
		unloadAfter(time.Second)(j, r)
	}},
	"aborted before its sleep": {node: busyNode, change: sleeps, play: func(j *journal, r *Replica) {
		pause(time.Second)
		r.Sleep(2, "idle")
		pause(29 * time.Second)
		r.WakeUp("asked for")
		pause(100 * time.Millisecond)
		r.Sleep(1, "not any more")
		pause(time.Minute)
		j.setMetrics(nil)
		unloadAfter(time.Minute)(j, r)
	}},
	"woken while it falls asleep": {node: func() *fakeNode { return &fakeNode{sleepTime: 5 * time.Second} }, change: sleeps,
		play: func(j *journal, r *Replica) {
			pause(time.Second)
			r.Sleep(2, "idle")
			pause(time.Second)
			r.WakeUp("asked for")
			unloadAfter(10*time.Second)(j, r)
		}},
	"does not fall asleep": {node: func() *fakeNode { return &fakeNode{sleepTime: time.Hour} }, change: sleeps,
		play: func(j *journal, r *Replica) { r.Sleep(1, "idle") }},
	"wakes too slowly":        {node: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, change: sleeps, play: sleepAndWake(1)},
	"wakes from a deep sleep": {node: func() *fakeNode { return &fakeNode{wakeTime: 9 * time.Minute} }, change: sleeps, play: sleepAndWake(2)},
	"wakes deeply too slowly": {node: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, change: sleeps, play: sleepAndWake(2)},
	"wakes slowly without a token": {node: func() *fakeNode { return &fakeNode{wakeTime: 25 * time.Second} }, change: sleeps,
		play: sleepAndWake(1, func(j *journal, _ *Replica) { j.hang.Store(true) })},
	"awake without a token": {change: sleeps, play: func(j *journal, r *Replica) {
		r.Sleep(1, "idle")
		pause(time.Second)
		j.hang.Store(true)
		r.WakeUp("x")
	}},
	"unloaded while it wakes": {node: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, change: sleeps,
		play: sleepAndWake(1, unloadAfter(time.Second))},
	"dies while it wakes": {node: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, change: sleeps,
		play: sleepAndWake(1, dieAfter(time.Second, supervisor.Exit{Code: 1, Tail: "ValueError: x"}))},
	"no memory to wake": {change: func(o *Options) { sleeps(o); memoryTaken(o, 5*time.Second, time.Hour) }, play: sleepAndWake(1)},
	"memory to wake after a time": {change: func(o *Options) { sleeps(o); memoryTaken(o, 5*time.Second, 20*time.Second+time.Millisecond) },
		play: sleepAndWake(1, unloadAfter(30*time.Second))},
}
