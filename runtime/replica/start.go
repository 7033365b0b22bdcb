package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// starting is LOADING_TO_GPU: the engine is started and asked for its first token.
func (r *Replica) starting(ctx context.Context) state {
	r.enter(functions.Loading)
	deadline := time.Now().Add(r.o.Spec.Deadlines.Start.Std())
	for try := 1; ; try++ {
		if next, ended := r.takeStop(); ended { // after this the start cannot be cancelled
			return next
		}
		next, retry := r.start(ctx, deadline, try < portTries)
		if !retry {
			return next
		}
		r.log.Warn("the engine's port was taken, trying another", "port", r.port)
	}
}

// start is one try; retry reports that the port was taken.
func (r *Replica) start(ctx context.Context, deadline time.Time, mayRetry bool) (next state, retry bool) {
	began := time.Now()
	port, err := engine.FreePort()
	if err != nil {
		return r.failed(err.Error()), false
	}
	r.port = port
	req := engine.Request{
		Spec: r.o.Spec, Name: r.o.Model, Path: r.ckpt.Path, Dir: r.o.Dir, Port: port, GPUs: r.o.GPUs,
		GPUMemory: r.o.GPUMemory, Cache: r.ckpt.Cache, CacheShared: r.ckpt.CacheShared,
	}
	if r.early != nil {
		req.Path, req.Weights, req.Streamed = r.early.Path, r.early.Weights, true
		req.Cache, req.CacheShared = r.early.Cache, r.early.CacheShared
	}
	req.Key = engine.NewKey()
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
			req.Notify, notices = n.Addr(), n.C()
		}
	}
	cmd, plan, err := r.prepare(req)
	if err != nil {
		return r.failed(err.Error()), false
	}
	meta := Meta{
		Assignment: r.o.Assignment, Port: port, Path: req.Path, Bytes: r.ckpt.Bytes, Weights: r.ckpt.Digest,
		Began: r.o.Began, Started: began, Phases: r.phases, Key: cmd.Key, Health: cmd.Health,
	}
	waits := r.missingGPUMemory() != ""
	if next, ended := r.waitForGPUMemory(ctx, deadline); ended {
		return next, false
	}
	if waits { // other memory is free now
		if cmd, plan, err = r.prepare(req); err != nil {
			return r.failed(err.Error()), false
		}
	}
	began = time.Now()
	meta.Started = began
	if next, ended := r.waitForParent(ctx, cmd); ended {
		return next, false
	}
	r.logFrom = 0
	if st, err := os.Stat(r.LogPath()); err == nil { // of an earlier try
		r.logFrom = st.Size()
	}
	child, err := r.spawn(ctx, cmd, plan, meta)
	if err != nil {
		return r.failed(fmt.Sprintf("%s: %v", r.o.Spec.Engine, err)), false
	}
	r.child = child
	r.logAt.Store(&child.Log)
	if r.eng != nil {
		r.eng.Close()
	}
	r.eng = r.o.Dial(cmd)
	r.now.Endpoint, r.now.Key = cmd.URL, cmd.Key
	return r.booting(ctx, began, deadline, notices, mayRetry)
}

func (r *Replica) prepare(req engine.Request) (engine.Command, *confine.Plan, error) {
	req.GPUFree = r.leastFreeGPU()
	cmd, err := r.o.Programs.Prepare(req)
	if err != nil || r.o.Confine == nil {
		return cmd, nil, err
	}
	plan, err := r.o.Confine(&cmd, req)
	return cmd, plan, err
}

// missingGPUMemory describes a GPU with less free memory than the model needs; "" if
// there is none or it is not known.
func (r *Replica) missingGPUMemory() string {
	want := r.o.Spec.Resources.GPUMemory
	if r.o.FreeGPU == nil || want <= 0 {
		return ""
	}
	if r.o.GPUMemory > 0 {
		want = min(want, r.o.GPUMemory/100*98) // the driver keeps some: no GPU has all of its memory free
	}
	for _, g := range r.o.GPUs {
		if free, ok := r.o.FreeGPU(g); ok && free < want {
			return fmt.Sprintf("GPU %d has %s free, the model needs %s", g, free.Human(), want.Human())
		}
	}
	return ""
}

// leastFreeGPU is the free memory of the replica's GPU that has the least; 0 if unknown.
func (r *Replica) leastFreeGPU() (least functions.Bytes) {
	if r.o.FreeGPU == nil {
		return 0
	}
	for _, g := range r.o.GPUs {
		free, ok := r.o.FreeGPU(g)
		if !ok {
			return 0
		}
		if least == 0 || free < least {
			least = free
		}
	}
	return least
}

// causeGPUMemory begins the failure of a start or wake that waited for GPU memory.
const causeGPUMemory = "insufficient_gpu_memory"

// insufficientGPUMemory is the failure of a start or wake that waited for GPU memory. It
// names the processes that are not thaw's and hold it.
func (r *Replica) insufficientGPUMemory(problem string) string {
	return r.addGPUHolders(causeGPUMemory + ": " + problem)
}

// addGPUHolders adds to a text the processes that are not thaw's and hold memory of the
// replica's GPUs.
func (r *Replica) addGPUHolders(text string) string {
	if r.o.GPUHolders == nil {
		return text
	}
	for _, g := range r.o.GPUs {
		if holders := r.o.GPUHolders(g); holders != "" {
			text += fmt.Sprintf("; of GPU %d %s", g, holders)
		}
	}
	return text
}

// waitForGPUMemory waits until the GPUs have the model's memory free, until the start's
// deadline: an engine that started without would fail, or take what others need. The
// status says what is missing. ended reports that the start has ended; next follows it.
func (r *Replica) waitForGPUMemory(ctx context.Context, deadline time.Time) (next state, ended bool) {
	problem := r.missingGPUMemory()
	if problem == "" {
		return nil, false
	}
	r.log.Warn("waiting for free GPU memory", "why", problem)
	r.now.StartNote = "waits for GPU memory: " + problem
	r.notify()
	poll := time.NewTicker(freeEvery)
	defer poll.Stop()
	limit := time.After(time.Until(deadline))
	for {
		select {
		case <-poll.C:
			if r.missingGPUMemory() == "" {
				r.now.StartNote = ""
				return nil, false
			}
		case <-limit:
			return r.failed(r.insufficientGPUMemory(problem)), true
		case <-r.commandReady:
			if next, ended := r.takeStop(); ended {
				return next, true
			}
		case <-ctx.Done():
			return nil, true
		}
	}
}

// takeStop takes the commands. It reports whether one of them ends the start, and the state
// that follows.
func (r *Replica) takeStop() (next state, ended bool) {
	switch c := r.takeCommands(); {
	case c.unload:
		return r.unloaded(c.reason), true
	case c.cancelStart:
		return r.unloaded(ErrStartCancelled.Error()), true
	}
	return nil, false
}

// waitForParent waits, for a bounded time, for a starting warm interpreter: a plain
// start beside it would import the same modules again.
func (r *Replica) waitForParent(ctx context.Context, cmd engine.Command) (next state, ended bool) {
	if r.o.ParentReady == nil {
		return nil, false
	}
	coming := r.o.ParentReady(cmd)
	if coming == nil {
		return nil, false
	}
	limit := time.After(min(parentWait, r.o.Spec.Deadlines.Start.Std()/4))
	for {
		select {
		case <-coming:
			return nil, false
		case <-limit:
			return nil, false
		case <-r.commandReady:
			if next, ended := r.takeStop(); ended {
				return next, true
			}
		case <-ctx.Done():
			return nil, true
		}
	}
}

// spawn starts the process, forked from a warm interpreter if there is one.
func (r *Replica) spawn(ctx context.Context, cmd engine.Command, plan *confine.Plan, meta Meta) (*supervisor.Child, error) {
	forkSocket, note := "", ""
	if r.o.ForkParent != nil {
		forkSocket, note = r.o.ForkParent(cmd)
	}
	for {
		meta.Start, meta.Note = functions.StartPlain, note
		if forkSocket != "" {
			meta.Start, meta.Note = functions.StartWarm, ""
		}
		b, err := json.Marshal(meta)
		if err != nil {
			return nil, err
		}
		sctx, cancel := context.WithTimeout(ctx, spawnWait)
		child, err := r.o.Spawner.Spawn(sctx, supervisor.Process{
			ID: r.o.ID, Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir, Meta: b, ForkSocket: forkSocket,
			Scratch: cmd.Scratch, ScratchFiles: cmd.ScratchFiles, Confine: plan,
		})
		cancel()
		if forkSocket != "" && errors.Is(err, supervisor.ErrNoParent) {
			forkSocket, note = "", err.Error()
			continue
		}
		if err == nil {
			r.now.Start, r.now.StartNote = meta.Start, meta.Note
		}
		return child, err
	}
}

// adopting is LOADING_TO_GPU of a process that an earlier agent started.
func (r *Replica) adopting(ctx context.Context) state {
	m := r.adopt.meta
	r.child, r.port, r.phases = r.adopt.child, m.Port, m.Phases
	r.logAt.Store(&r.child.Log)
	r.now.Bytes, r.now.TotalBytes = m.Bytes, m.Bytes
	r.now.Start, r.now.StartNote = m.Start, m.Note
	r.ckpt.Path = m.Path
	if m.Spec.Source != "" {
		// For the lease only: the engine has its files open.
		sctx, cancel := context.WithTimeout(ctx, leaseWait)
		s := r.stage(sctx)
		cancel()
		if s.err == nil {
			r.ckpt = s.ckpt
		} else {
			r.log.Warn("no lease for an adopted engine's checkpoint", "error", s.err)
		}
	}
	r.ckpt.Digest = m.Weights // what the engine has loaded, not what is staged now
	cmd := engine.Adopted(m.Spec, m.Model, m.Port)
	cmd.Key = m.Key
	if m.Health != "" {
		cmd.Health = m.Health
	}
	r.eng = r.o.Dial(cmd)
	r.now.Endpoint, r.now.Key = cmd.URL, cmd.Key
	if s, ok := r.eng.(sleeper); ok && engine.Sleeps(m.Spec) {
		sctx, cancel := context.WithTimeout(ctx, pollWait)
		level, err := s.SleepLevel(sctx)
		cancel()
		if err == nil && level > 0 {
			return r.sleeping(sleepRequest{level: level, why: "an earlier agent sent it to sleep", asleep: true})
		}
	}
	// It may have been READY for long: its first token has a deadline of its own.
	deadline := latest(m.Started.Add(m.Spec.Deadlines.Start.Std()), time.Now().Add(r.o.Spec.Deadlines.FirstToken.Std()))
	next, _ := r.booting(ctx, m.Started, deadline, nil, false)
	return next
}
