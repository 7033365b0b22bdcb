package replica

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// starting is LOADING_TO_GPU: the engine is started and asked for its first token.
func (r *Replica) starting(ctx context.Context) state {
	r.report.enter(functions.Loading)
	return r.start(ctx, time.Now().Add(r.o.Spec.Deadlines.Start.Std()), portTries)
}

// start starts the engine. If another process takes its port it is tried again, tries times
// in all.
func (r *Replica) start(ctx context.Context, deadline time.Time, tries int) state {
	if next := r.takeStop(); next != nil { // after this the start cannot be cancelled
		return next
	}
	port, err := engine.FreePort()
	if err != nil {
		return r.failed(err.Error())
	}
	ckpt := &r.files.ckpt
	req := engine.Request{
		Spec: r.o.Spec, Name: r.o.Model, Path: ckpt.Path, Dir: r.o.Dir, Port: port, GPUs: r.o.GPUs,
		GPUMemory: r.o.GPUMemory, Cache: ckpt.Cache, CacheShared: ckpt.CacheShared, Key: engine.NewKey(),
	}
	if early := r.files.early; early != nil {
		req.Path, req.Weights, req.Streamed = early.Path, early.Weights, true
		req.Cache, req.CacheShared = early.Cache, early.CacheShared
	}
	if r.o.Scratch != "" {
		req.Scratch = supervisor.Scratch(r.o.Scratch, r.o.ID)
	}
	var notices <-chan engine.Notice
	if engine.Notifies(r.o.Spec.Engine) {
		n, err := engine.ListenNotify()
		if err != nil {
			r.log.Warn("no notify socket, readiness is probed only", "error", err)
		} else {
			defer n.Close()
			req.Notify, notices = n.Addr, n.C()
		}
	}
	cmd, plan, err := r.prepare(req)
	if err != nil {
		return r.failed(err.Error())
	}
	if problem := r.gpus.missing(); problem != "" {
		if next := r.waitForGPUMemory(ctx, deadline, problem); next != nil {
			return next
		}
		if cmd, plan, err = r.prepare(req); err != nil { // other memory is free now
			return r.failed(err.Error())
		}
	}
	began := time.Now()
	if next := r.waitForParent(ctx, cmd); next != nil {
		return next
	}
	now := &r.report.now
	start, note, err := r.process.spawn(ctx, cmd, plan, Meta{
		Assignment: r.o.Assignment, Port: port, Path: req.Path, Bytes: ckpt.Bytes, Weights: ckpt.Digest,
		Began: r.report.began, Started: began, Phases: now.Phases, Key: cmd.Key, Health: cmd.Health,
	})
	if err != nil {
		return r.failed(fmt.Sprintf("engine %s: %s", r.o.Spec.Engine, engine.ExplainExec(cmd.Argv[0], err)))
	}
	_, _, problem := r.files.progress()
	now.Start, now.StartNote = start, strings.Join(slices.DeleteFunc([]string{problem, note}, func(s string) bool { return s == "" }), "; ")
	r.connect(cmd)
	var again state
	if tries > 1 {
		again = func(ctx context.Context) state {
			r.log.Warn("the engine's port was taken, trying another", "port", port)
			return r.start(ctx, deadline, tries-1)
		}
	}
	return r.booting(ctx, began, deadline, notices, again)
}

// connect makes the client of a running engine.
func (r *Replica) connect(cmd engine.Command) {
	if r.eng != nil {
		r.eng.Close()
	}
	r.eng = r.o.Dial(cmd)
	r.report.now.Endpoint, r.report.now.Key = cmd.URL, cmd.Key
}

func (r *Replica) prepare(req engine.Request) (engine.Command, *confine.Plan, error) {
	req.GPUFree = r.gpus.leastFree()
	cmd, err := r.o.Programs.Prepare(req)
	if err != nil || r.o.Confine == nil {
		return cmd, nil, err
	}
	plan, err := r.o.Confine(&cmd, req)
	return cmd, plan, err
}

// waitForGPUMemory waits until the GPUs have the model's memory free, until the start's
// deadline: an engine that started without would fail, or take what others need. The
// status has the problem. It returns nil to go on, else the state that follows.
func (r *Replica) waitForGPUMemory(ctx context.Context, deadline time.Time, problem string) state {
	r.log.Warn("waiting for free GPU memory", "why", problem)
	r.report.now.StartNote = "waits for GPU memory: " + problem
	r.report.notify()
	for time.Now().Before(deadline) {
		if next := r.waitToSpawn(ctx, min(freeEvery, time.Until(deadline)), nil); next != nil {
			return next
		}
		if r.gpus.missing() == "" {
			r.report.now.StartNote = ""
			r.report.notify()
			return nil
		}
	}
	return r.failed(r.gpus.insufficient(problem))
}

// waitForParent waits, for a bounded time, for a starting warm interpreter: a plain
// start beside it would import the same modules again.
func (r *Replica) waitForParent(ctx context.Context, cmd engine.Command) state {
	var ready <-chan struct{}
	if r.o.ParentReady != nil {
		ready = r.o.ParentReady(cmd)
	}
	if ready == nil {
		return nil
	}
	return r.waitToSpawn(ctx, min(parentWait, r.o.Spec.Deadlines.Start.Std()/4), ready)
}

// waitToSpawn waits until ready is closed, for at most d. It returns nil to go on, else the
// state that follows.
func (r *Replica) waitToSpawn(ctx context.Context, d time.Duration, ready <-chan struct{}) state {
	limit := time.After(d)
	for {
		select {
		case <-ready:
			return nil
		case <-limit:
			return nil
		case <-r.commands.ready:
			if next := r.takeStop(); next != nil {
				return next
			}
		case <-ctx.Done():
			return endRun
		}
	}
}

// takeStop takes the commands. It returns the state that follows if one of them ends the
// start, else nil.
func (r *Replica) takeStop() state {
	if reason, cause := r.commands.take().stop(); cause != nil {
		return r.unloaded(reason)
	}
	return nil
}

// adopting is LOADING_TO_GPU of a process that an earlier agent started.
func (r *Replica) adopting(ctx context.Context, m Meta, child *supervisor.Child) state {
	r.process.attach(child)
	now, f := &r.report.now, &r.files
	now.Phases, now.Bytes, now.TotalBytes, now.Start, now.StartNote = m.Phases, m.Bytes, m.Bytes, m.Start, m.Note
	f.ckpt.Path = m.Path
	if m.Spec.Source != "" {
		// For the lease only: the engine has its files open.
		sctx, cancel := context.WithTimeout(ctx, leaseWait)
		s := f.stage(sctx, r.stageRequest(), false)
		cancel()
		if s.err == nil {
			f.ckpt = s.ckpt
		} else {
			r.log.Warn("no lease for an adopted engine's checkpoint", "error", s.err)
		}
	}
	f.ckpt.Digest = m.Weights // what the engine has loaded, not what is staged now
	cmd := engine.Adopted(m.Spec, m.Model, m.Port)
	cmd.Key = m.Key
	if m.Health != "" {
		cmd.Health = m.Health
	}
	r.connect(cmd)
	if s, ok := r.eng.(sleeper); ok && engine.Sleeps(m.Spec) {
		sctx, cancel := context.WithTimeout(ctx, pollWait)
		level, err := s.SleepLevel(sctx)
		cancel()
		if err == nil && level > 0 {
			return (&sleep{r: r, sleepRequest: sleepRequest{level, "an earlier agent sent it to sleep", true}}).run
		}
	}
	// It may have been READY for long: its first token has a deadline of its own.
	deadline := latest(m.Started.Add(m.Spec.Deadlines.Start.Std()), time.Now().Add(r.o.Spec.Deadlines.FirstToken.Std()))
	return r.booting(ctx, m.Started, deadline, nil, nil)
}
