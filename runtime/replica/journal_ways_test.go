package replica

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// sleeps gives an engine the mode in which it sleeps.
func sleeps(o *Options) { o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"} }

// adapters gives a model two adapters, and its engine one slot for them.
func adapters(o *Options) {
	sleeps(o)
	o.Spec.Adapters = []functions.Adapter{{Name: "a", Source: "a"}, {Name: "kv", Source: "kv"}}
	o.Spec.Args = []string{"--max-loras", "1"}
}

// pause lets time pass. What comes after it happens at no time at which the replica does something
// by itself.
func pause(d time.Duration) { time.Sleep(d + time.Millisecond) }

// busyMetrics are those of an engine with requests; its tokens are not counted.
func busyMetrics() (engine.Metrics, error) {
	return engine.Metrics{Load: true, Running: 2, Waiting: 1, HitRate: 0.5}, nil
}

func busyNode() *fakeNode { return &fakeNode{metrics: busyMetrics} }

func asleepNode() *fakeNode {
	n := &fakeNode{wakeTime: time.Second}
	n.asleep.Store(2)
	return n
}

func hungNode() *fakeNode {
	n := &fakeNode{}
	n.hang.Store(true)
	return n
}

func agentEnds(after time.Duration) func(*journal, *Replica) {
	return func(j *journal, _ *Replica) { pause(after); j.note("the agent ends"); j.cancel() }
}

func unloadAfter(d time.Duration) func(*journal, *Replica) {
	return func(_ *journal, r *Replica) { pause(d); r.Unload(time.Millisecond, "stopped") }
}

// silently does f to an engine that has stopped to answer /metrics.
func silently(f func(*journal, *Replica)) func(*journal, *Replica) {
	return func(j *journal, r *Replica) { j.silent.Store(true); pause(time.Second); f(j, r) }
}

func dieAfter(d time.Duration, x supervisor.Exit) func(*journal, *Replica) {
	return func(j *journal, _ *Replica) { pause(d); j.die(x) }
}

func sleepAndWake(level int, then ...func(*journal, *Replica)) func(*journal, *Replica) {
	return func(j *journal, r *Replica) {
		r.Sleep(level, "idle")
		pause(10 * time.Second)
		r.WakeUp("asked for")
		for _, f := range then {
			f(j, r)
		}
		if len(then) == 0 {
			unloadAfter(time.Hour)(j, r)
		}
	}
}

// parent is that a warm interpreter can fork the engine.
func parent(socket, note string) func(*Options) {
	return func(o *Options) {
		o.ForkParent = func(cmd engine.Command) (string, string) { return socket, note }
	}
}

// parentAfter is that it starts, and is ready after d.
func parentAfter(d time.Duration) func(*Options) {
	return func(o *Options) {
		ready := make(chan struct{})
		timer := time.AfterFunc(d, func() { close(ready) })
		o.ParentReady = func(engine.Command) <-chan struct{} { return ready }
		o.ForkParent = func(engine.Command) (string, string) { timer.Stop(); return "", "too late" }
	}
}

// noMemory is that the model's memory is free after d.
func noMemory(d time.Duration) func(*Options) {
	return func(o *Options) { memoryTaken(o, 0, d) }
}

// memoryTaken is that another process has the model's memory from one time to another.
func memoryTaken(o *Options, from, until time.Duration) {
	o.Spec.Resources.GPUMemory = 40 << 30
	began := time.Now()
	o.FreeGPU = func(int) (functions.Bytes, bool) {
		if d := time.Since(began); from <= d && d < until {
			return 10 << 30, true
		}
		return 41 << 30, true
	}
	o.GPUHolders = func(int) string { return "python (pid 7)" }
}

// earlier are the notes of a process that was started then.
func earlier(ago time.Duration) func(Options) Meta {
	return func(o Options) Meta {
		began := time.Now().Add(-ago)
		return Meta{Assignment: o.Assignment, Port: 7001, Path: "/store/earlier", Bytes: 90, Weights: "loaded then", Began: began,
			Started: began.Add(time.Second), Phases: []functions.Span{{Phase: functions.PhaseStage, Duration: 1}},
			Start: functions.StartWarm, Note: "as noted", Key: "sk-then", Health: "/alive"}
	}
}

// notices begins with an engine that has a notify socket and sends these, one a second.
func notices(all []engine.Notice) func(*journal, *Replica) state {
	return func(j *journal, r *Replica) state {
		return func(ctx context.Context) state {
			child, err := j.Spawn(ctx, supervisor.Process{ID: "r1"})
			if err != nil {
				return r.failed(err.Error())
			}
			r.process.attach(child)
			r.connect(engine.Command{URL: "http://127.0.0.1:1"})
			ch := make(chan engine.Notice)
			go func() {
				defer close(ch)
				for _, n := range all {
					pause(time.Second)
					select {
					case ch <- n:
					case <-time.After(500 * time.Millisecond):
						j.note("%+v is not read", n)
					}
				}
			}()
			r.report.enter(functions.Loading)
			began := time.Now()
			return r.booting(ctx, began, began.Add(time.Minute), ch, nil)
		}
	}
}
