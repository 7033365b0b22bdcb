package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

const (
	// termGrace between SIGTERM and SIGKILL of an engine that was drained or
	// is still loading (vLLM swallows SIGTERM while it waits for its core).
	// With it nothing is left 2 s after any deadline.
	termGrace = 1200 * time.Millisecond
	// killWait bounds the wait for the exit of a killed group.
	killWait = 2 * time.Second
	// probeWait bounds the request for one token of a suspected engine.
	probeWait = 5 * time.Second
	// pollEvery is how often metrics of a READY engine are read, drainEvery
	// those of one that drains.
	pollEvery, drainEvery = 500 * time.Millisecond, 100 * time.Millisecond
	// busyEvery is how often those of one with requests are: a hang is told
	// within hang + busyEvery + probeWait of the last token.
	busyEvery = 250 * time.Millisecond
	// pollWait bounds one reading, quickReadWait one before and after a
	// probe, and one of /health.
	pollWait, quickReadWait = 2 * time.Second, 500 * time.Millisecond
	// healthLate bounds the wait for /health once /metrics has answered.
	healthLate = 100 * time.Millisecond
	// portTries: a free port may be taken between the choice and the bind.
	portTries = 3
	// probeTries: an engine that answers the probe with errors while its
	// /health is good is given up after so many in a row.
	probeTries = 3
	// warmWait bounds the wait for a warm interpreter that is on its way.
	// No more than a quarter of the model's deadline for its start goes into it.
	warmWait = 2 * time.Minute
	// spawnWait bounds the supervisor's answer.
	spawnWait = 10 * time.Second
	// cutWait is for requests that we ended to be gone from the engine.
	cutWait = 300 * time.Millisecond
	// freeWait bounds the wait for GPU memory, looked at every freeEvery.
	freeWait, freeEvery = 10 * time.Second, 50 * time.Millisecond
	// leaseWait bounds finding the checkpoint of an adopted engine again.
	leaseWait = 5 * time.Second
)

// DOWNLOADING: the checkpoint comes.
func (r *Replica) staging(ctx context.Context) state {
	began := time.Now()
	if r.o.Spec.Source == "" {
		return r.starting
	}
	limit := r.o.Spec.Deadlines.Stage.Std()
	sctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("not staged within %s", limit)) })
	on := false // the staging goes on beside the start
	defer func() {
		if !on {
			timer.Stop()
			cancel(nil)
		}
	}()

	got := make(chan stagingResult, 1)
	go func() { got <- r.stageFiles(sctx) }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	end := ""
	for {
		select {
		case s := <-got:
			switch {
			case s.err != nil:
			case s.early != nil:
				on = true
				r.early = startEarlyStaging(sctx, *s.early, began, func() { timer.Stop(); cancel(nil) })
				if end != "" || ctx.Err() != nil {
					cancel(nil)
				}
			default:
				r.ckpt = s.ckpt
				r.now.Bytes, r.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
			}
			switch {
			case end != "":
				return r.unloaded(end)
			case ctx.Err() != nil:
				return nil
			case s.err != nil:
				return r.failed("stage: " + cancelCause(sctx, s.err).Error())
			case on:
				return r.starting
			}
			r.addPhase(functions.PhaseStage, began, time.Now())
			return r.starting
		case <-tick.C:
			r.reportStaging()
		case <-r.commandReady:
			switch w := r.takeCommands(); {
			case w.unload:
				end = w.reason
				cancel(errors.New("unloaded"))
			case w.cancelStart:
				end = ErrStartCancelled.Error()
				cancel(ErrStartCancelled)
			}
		}
	}
}

// cancelCause is the cause of the context where that is what an error is about.
func cancelCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

type stagingResult struct {
	ckpt  Checkpoint
	early *PartialCheckpoint // instead of ckpt
	err   error
}

func (r *Replica) stageRequest() StageRequest {
	key := r.o.Cache
	if key == "" {
		key = r.o.Programs.CacheKey(r.o.Spec, r.o.GPUName, len(r.o.GPUs))
	}
	return StageRequest{Team: r.o.Team, Source: r.o.Spec.Source, Dir: r.o.Dir, Digest: r.o.Digest, Files: r.o.Spec.Files, Cache: key, Engine: r.o.Spec.Engine}
}

func (r *Replica) stage(ctx context.Context) stagingResult {
	c, err := r.o.Stager.Stage(ctx, r.stageRequest(), r.setStaged)
	return stagingResult{ckpt: c, err: err}
}

func (r *Replica) setStaged(have, whole functions.Bytes) {
	r.have.Store(int64(have))
	r.whole.Store(int64(whole))
}

// stageFiles stages, early where both sides can.
func (r *Replica) stageFiles(ctx context.Context) stagingResult {
	early, ok := r.o.Stager.(EarlyStager)
	if !ok || !engine.Streams(r.o.Spec.Engine) {
		return r.stage(ctx)
	}
	a, err := early.StageEarly(ctx, r.stageRequest(), r.setStaged)
	if err != nil {
		return stagingResult{err: err}
	}
	if !a.Complete {
		return stagingResult{early: &a}
	}
	c, err := a.Rest(ctx)
	if a.EngineReady != nil {
		a.EngineReady()
	}
	return stagingResult{ckpt: c, err: err}
}

// reportStaging tells how far staging is.
func (r *Replica) reportStaging() {
	have, whole := r.have.Load(), r.whole.Load()
	if functions.Bytes(have) == r.now.Bytes && functions.Bytes(whole) == r.now.TotalBytes {
		return
	}
	r.now.Bytes, r.now.TotalBytes = functions.Bytes(have), functions.Bytes(whole)
	percent := -1
	if whole > 0 {
		percent = int(have * 100 / whole)
	}
	r.now.Percent = percent
	r.notify()
}

// boot events, with their times.
type bootEvent struct {
	listening, healthy, done bool
	at                       time.Time
	err                      error
}

// LOADING_TO_GPU: the engine is started and asked for its first token.
func (r *Replica) starting(ctx context.Context) state {
	r.enter(functions.Loading)
	deadline := time.Now().Add(r.o.Spec.Deadlines.Start.Std())
	for try := 1; ; try++ {
		switch w := r.takeCommands(); { // the last moment to call it off
		case w.unload:
			return r.unloaded(w.reason)
		case w.cancelStart:
			return r.unloaded(ErrStartCancelled.Error())
		}
		next, again := r.start(ctx, deadline, try < portTries)
		if !again {
			return next
		}
		r.log.Warn("the engine's port was taken, trying another", "port", r.port)
	}
}

// start is one try; again says that the port was taken.
func (r *Replica) start(ctx context.Context, deadline time.Time, mayRetry bool) (next state, again bool) {
	began := time.Now()
	port, err := engine.FreePort()
	if err != nil {
		return r.failed(err.Error()), false
	}
	r.port = port
	req := engine.Request{Spec: r.o.Spec, Name: r.o.Model, Path: r.ckpt.Path, Dir: r.o.Dir, Port: port, GPUs: r.o.GPUs, GPUMemory: r.o.GPUMemory, Cache: r.ckpt.Cache}
	if r.early != nil {
		req.Path, req.Weights, req.Cache, req.Streamed = r.early.Path, r.early.Weights, r.early.Cache, true
	}
	req.Key = engine.NewKey()
	if r.o.Scratch != "" {
		req.Scratch = supervisor.Scratch(r.o.Scratch, r.o.ID)
	}
	var notices <-chan engine.Notice
	if engine.Notifies(r.o.Spec.Engine) {
		n, err := engine.ListenNotify()
		if err != nil {
			r.log.Warn("no notify socket, probing alone", "error", err)
		} else {
			defer n.Close()
			req.Notify, notices = n.Addr(), n.C()
		}
	}
	cmd, err := r.o.Programs.Prepare(req)
	if err != nil {
		return r.failed(err.Error()), false
	}
	meta := Meta{
		ID: r.o.ID, Team: r.o.Team, Model: r.o.Model, Spec: r.o.Spec, Dir: r.o.Dir, Digest: r.o.Digest, GPUs: r.o.GPUs,
		Port: port, Path: req.Path, Bytes: r.ckpt.Bytes, Began: r.o.Began, Started: began, Phases: r.phases,
		Key: cmd.Key, Health: cmd.Health,
	}
	switch next, ended := r.waitForGPUMemory(ctx); {
	case ended:
		return next, false
	default:
		began = time.Now()
		meta.Started = began
	}
	if next, ended := r.waitForParent(ctx, cmd); ended {
		return next, false
	}
	r.logFrom = 0
	if st, err := os.Stat(r.LogPath()); err == nil { // of the try before
		r.logFrom = st.Size()
	}
	child, err := r.spawn(ctx, cmd, meta)
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

// missingGPUMemory is what is missing on the GPUs for the model to be on them; "" for
// nothing that is known.
func (r *Replica) missingGPUMemory() string {
	want := r.o.Spec.Resources.GPUMemory
	if r.o.FreeGPU == nil || want <= 0 {
		return ""
	}
	for _, g := range r.o.GPUs {
		if free, ok := r.o.FreeGPU(g); ok && free < want {
			return fmt.Sprintf("GPU %d has %s free, the model wants %s", g, free, want)
		}
	}
	return ""
}

// waitForGPUMemory waits until the GPUs have what the model says it takes; ended says
// that nothing is to be started any more, and what comes instead.
func (r *Replica) waitForGPUMemory(ctx context.Context) (next state, ended bool) {
	if r.missingGPUMemory() == "" {
		return nil, false
	}
	poll := time.NewTicker(freeEvery)
	defer poll.Stop()
	limit := time.NewTimer(freeWait)
	defer limit.Stop()
	for {
		select {
		case <-poll.C:
			if r.missingGPUMemory() == "" {
				return nil, false
			}
		case <-limit.C:
			// The figure of the model file may be too high; the engine knows.
			r.log.Warn("starting all the same", "why", r.missingGPUMemory())
			return nil, false
		case <-r.commandReady:
			switch w := r.takeCommands(); {
			case w.unload:
				return r.unloaded(w.reason), true
			case w.cancelStart:
				return r.unloaded(ErrStartCancelled.Error()), true
			}
		case <-ctx.Done():
			return nil, true
		}
	}
}

// waitForParent waits for a warm interpreter that is on its way: what it imports a
// plain start imports twice. The wait is bounded by what two imports may take.
func (r *Replica) waitForParent(ctx context.Context, cmd engine.Command) (next state, ended bool) {
	if r.o.ParentReady == nil {
		return nil, false
	}
	coming := r.o.ParentReady(cmd)
	if coming == nil {
		return nil, false
	}
	limit := time.NewTimer(min(warmWait, r.o.Spec.Deadlines.Start.Std()/4))
	defer limit.Stop()
	for {
		select {
		case <-coming:
			return nil, false
		case <-limit.C:
			return nil, false
		case <-r.commandReady:
			switch w := r.takeCommands(); {
			case w.unload:
				return r.unloaded(w.reason), true
			case w.cancelStart:
				return r.unloaded(ErrStartCancelled.Error()), true
			}
		case <-ctx.Done():
			return nil, true
		}
	}
}

// spawn starts the process: forked from a warm interpreter where there is one
// for it, executed where there is none.
func (r *Replica) spawn(ctx context.Context, cmd engine.Command, meta Meta) (*supervisor.Child, error) {
	via, note := "", ""
	if r.o.ForkParent != nil {
		via, note = r.o.ForkParent(cmd)
	}
	for {
		meta.Start, meta.Note = functions.StartPlain, note
		if via != "" {
			meta.Start, meta.Note = functions.StartWarm, ""
		}
		b, err := json.Marshal(meta)
		if err != nil {
			return nil, err
		}
		sctx, cancel := context.WithTimeout(ctx, spawnWait)
		child, err := r.o.Spawner.Spawn(sctx, supervisor.Process{ID: r.o.ID, Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir, Meta: b, Via: via, Scratch: cmd.Scratch})
		cancel()
		if via != "" && errors.Is(err, supervisor.ErrNoParent) {
			via, note = "", err.Error()
			continue
		}
		if err == nil {
			r.now.Start, r.now.StartNote = meta.Start, meta.Note
		}
		return child, err
	}
}

// booting follows a spawned engine until it has generated a token.
func (r *Replica) booting(ctx context.Context, began, deadline time.Time, notices <-chan engine.Notice, mayRetry bool) (next state, again bool) {
	bctx, cancel := context.WithCancel(ctx)
	ready, events, over := make(chan struct{}), make(chan bootEvent, 4), make(chan struct{})
	go func() { defer close(over); r.awaitToken(bctx, ready, events) }()
	defer func() { cancel(); <-over }()
	steps, lines := engine.NewSteps(r.o.Spec.Engine, began), make(chan line, 64)
	told := false // the log tells where the start is
	if r.adopt == nil && steps.Follows() {
		read, path, from := make(chan struct{}), r.child.Log, r.logFrom
		go func() { defer close(read); followLog(bctx, path, from, lines) }()
		defer func() { cancel(); <-read }()
	}
	var doomed <-chan time.Time // it said that it fails, and has not ended yet
	limit := time.NewTimer(time.Until(deadline))
	defer limit.Stop()
	// A checkpoint may still be arriving; the engine's time counts from its end.
	var rest <-chan stagingResult
	var tick <-chan time.Time
	booted := false
	if r.early != nil && !r.early.finished {
		rest = r.early.rest
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		tick = t.C
		limit.Stop()
	}

	listening, healthy := time.Time{}, time.Time{}
	listens := func(at time.Time) {
		if listening.IsZero() {
			listening = at
			if !told {
				r.addPhase(functions.PhaseSpawn, began, at)
			}
		}
	}
	serves := func(at time.Time) {
		listens(at)
		if healthy.IsZero() {
			healthy = at
			if told {
				steps.Serving(at)
			} else {
				r.addPhase(functions.PhaseLoad, listening, at)
			}
			r.progress(100)
		}
	}
	for {
		select {
		case n, ok := <-notices:
			if !ok {
				notices = nil
				break
			}
			listens(time.Now())
			if n.Percent >= 0 {
				r.progress(n.Percent)
			}
			if n.Ready {
				serves(time.Now())
				close(ready)
				notices = nil
			}
		case e := <-events:
			switch {
			case e.listening:
				listens(e.at)
			case e.healthy:
				serves(e.at)
			case e.err != nil:
				if ctx.Err() != nil {
					return nil, false
				}
				cancel()
				<-over
				// An engine that dies refuses connections too; its exit has the
				// cause, and comes within milliseconds if it comes.
				if x, ok := r.waitExit(200 * time.Millisecond); ok {
					return r.engineExited(ctx, x, "loading", mayRetry)
				}
				r.kill(ctx)
				return r.failed(fmt.Sprintf("%s: first token: %v", r.o.Spec.Engine, e.err)), false
			default:
				if told {
					r.setLogPhases(steps.End(e.at), "")
				} else {
					r.addPhase(functions.PhaseWarmup, healthy, e.at)
				}
				if rest == nil {
					return r.ready, false
				}
				booted = true // but nothing is served from bytes that are not verified
			}
		case l := <-lines:
			if healthy.IsZero() && steps.Line(l.text, l.at) {
				told = true
				now, _ := steps.Current()
				r.setLogPhases(steps.Done(), now.Phase)
				r.now.Percent = -1
				r.notify()
			} else if p, ok := engine.Percent(l.text); ok && healthy.IsZero() {
				r.progress(p)
			} else if doomed == nil && steps.StartFailed(l.text) {
				doomed = time.After(doomedWait)
			}
		case <-doomed:
			// It knows its cause, but not how to end.
			x := r.kill(ctx)
			cause := engine.RootCause(r.logTail(x), "it failed to start")
			if mayRetry && engine.PortTaken(cause) {
				return nil, true
			}
			return r.failed(fmt.Sprintf("%s ended while loading: %s", r.o.Spec.Engine, cause)), false
		case s := <-rest:
			rest, tick, r.early.finished = nil, nil, true
			if s.err != nil {
				if ctx.Err() != nil {
					return nil, false
				}
				r.kill(ctx)
				return r.failed("stage: " + cancelCause(r.early.ctx, s.err).Error()), false
			}
			now := time.Now()
			r.ckpt = s.ckpt
			r.now.Bytes, r.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
			r.addPhase(functions.PhaseStage, r.early.began, now)
			if booted {
				return r.ready, false
			}
			r.notify()
			limit.Reset(r.o.Spec.Deadlines.Start.Std())
		case <-tick:
			r.reportStaging()
		case x := <-r.child.Exited:
			if err := r.stagingError(rest); err != nil && ctx.Err() == nil {
				r.child = nil
				r.forgetProcess(ctx)
				return r.failed("stage: " + err.Error()), false
			}
			return r.engineExited(ctx, x, "loading", mayRetry)
		case <-limit.C:
			x := r.kill(ctx)
			return r.failed(fmt.Sprintf("%s: not ready within %s: %s", r.o.Spec.Engine, r.o.Spec.Deadlines.Start,
				engine.RootCause(r.logTail(x), "no answer"))), false
		case <-r.commandReady:
			if w := r.takeCommands(); w.unload {
				r.enter(functions.Draining)
				r.terminate(ctx)
				return r.unloaded(w.reason), false
			} // spawned: not called off any more
		case <-ctx.Done():
			return nil, false
		}
	}
}

// awaitToken waits until the engine serves and has given one token.
func (r *Replica) awaitToken(ctx context.Context, ready <-chan struct{}, events chan<- bootEvent) {
	// The engine's own word ends the probing.
	actx, stop := context.WithCancel(ctx)
	defer stop()
	said := make(chan struct{})
	go func() {
		defer close(said)
		select {
		case <-ready:
			stop()
		case <-actx.Done():
		}
	}()
	err := r.eng.Await(actx, func() { events <- bootEvent{listening: true, at: time.Now()} })
	stop()
	<-said
	if err != nil {
		select {
		case <-ready:
		default:
			events <- bootEvent{done: true, err: err, at: time.Now()}
			return
		}
	}
	events <- bootEvent{healthy: true, at: time.Now()}
	began := time.Now()
	limit := r.o.Spec.Deadlines.FirstToken.Std()
	tctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("none within %s", limit))
	defer cancel()
	for {
		err = r.eng.Token(tctx)
		var se *engine.StatusError
		if err == nil || !(errors.As(err, &se) && se.Busy()) && !engine.ConnectionRefused(err) {
			break
		}
		t := time.NewTimer(engine.ProbeInterval(time.Since(began)))
		select {
		case <-t.C:
		case <-tctx.Done():
		}
		t.Stop()
		if tctx.Err() != nil {
			break
		}
	}
	if err != nil && tctx.Err() != nil && ctx.Err() == nil {
		err = context.Cause(tctx)
	}
	events <- bootEvent{done: true, err: err, at: time.Now()}
}

// engineExited turns an unasked-for exit into FAILED, or into another try.
func (r *Replica) engineExited(ctx context.Context, x supervisor.Exit, while string, mayRetry bool) (next state, again bool) {
	r.child = nil
	r.forgetProcess(ctx)
	how := x.String()
	cause := how
	// Killed from outside, an engine has not said why; what it last wrote is
	// about something else.
	if x.Signal != syscall.SIGKILL && x.Signal != syscall.SIGTERM && !x.Lost {
		text := x.Tail
		if while == "loading" {
			text = r.logTail(x)
		}
		cause = engine.RootCause(text, how)
	}
	if mayRetry && engine.PortTaken(cause) {
		return nil, true
	}
	return r.failed(fmt.Sprintf("%s ended while %s: %s", r.o.Spec.Engine, while, cause)), false
}

// LOADING_TO_GPU of a process that an earlier agent left.
func (r *Replica) adopting(ctx context.Context) state {
	m := r.adopt.meta
	r.child, r.port, r.phases = r.adopt.child, m.Port, m.Phases
	r.logAt.Store(&r.child.Log)
	r.now.Bytes, r.now.TotalBytes = m.Bytes, m.Bytes
	r.now.Start, r.now.StartNote = m.Start, m.Note
	r.ckpt.Path = m.Path
	if m.Spec.Source != "" {
		// For the lease. The engine has its files open: without one it lives on.
		sctx, cancel := context.WithTimeout(ctx, leaseWait)
		s := r.stage(sctx)
		cancel()
		if s.err == nil {
			r.ckpt = s.ckpt
		} else {
			r.log.Warn("no lease for an adopted engine's checkpoint", "error", s.err)
		}
	}
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
	next, _ := r.booting(ctx, m.Started, m.Started.Add(m.Spec.Deadlines.Start.Std()+probeWait), nil, false)
	return next
}

// READY: watch it.
func (r *Replica) ready(ctx context.Context) state {
	r.finishStaging(ctx)
	r.enter(functions.Ready)
	if a, ok := r.eng.(adapterEngine); ok {
		r.adapters.setEngine(a)
		defer r.adapters.setEngine(nil)
	}
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := r.o.Spec.Deadlines
	w := newHangDetector(d.Hang.Std(), d.FirstToken.Std(), time.Now())
	w.calm = r.adopt == nil // all it has served is the warm-up, which is over
	poll := time.NewTimer(pollEvery)
	defer poll.Stop()
	readings, verdicts := make(chan reading, 1), make(chan error, 1)
	polling, probing, bad := false, false, 0
	// What was started is waited for, so that nothing of us is left behind.
	defer func() {
		cancel()
		if polling {
			<-readings
		}
		if probing {
			<-verdicts
		}
	}()
	look := func() {
		if !polling {
			polling = true
			go func() { readings <- r.checkEngine(rctx) }()
		}
	}
	look() // now, or requests that were waiting for us blur what idle looks like
	probe := func(why string) {
		if probing {
			return
		}
		probing = true
		r.log.Warn("engine suspected", "why", why)
		go func() { verdicts <- r.probe(rctx, why) }()
	}
	for {
		select {
		case x := <-r.child.Exited:
			next, _ := r.engineExited(ctx, x, "ready", false)
			return next
		case <-poll.C:
			look()
		case m := <-readings:
			polling = false
			if m.err == nil {
				r.publishMetrics(m.Metrics)
			}
			if why := w.observe(m.at, time.Now(), m.Metrics, m.err); why != "" {
				probe(why)
			} else if m.ill != "" {
				probe(m.ill)
			}
			poll.Reset(w.next(time.Now()))
		case err := <-verdicts:
			probing = false
			var se *engine.StatusError
			switch {
			case err == nil:
				bad = 0
				w.cleared(time.Now())
				r.log.Info("engine answered the probe")
			case ctx.Err() != nil:
			case errors.As(err, &se) && bad+1 < probeTries:
				bad++ // it lives, but not well
				w.cleared(time.Now())
			default:
				if x, ok := r.waitExit(50 * time.Millisecond); ok {
					next, _ := r.engineExited(ctx, x, "ready", false)
					return next
				}
				x := r.kill(ctx)
				what := "is broken"
				switch {
				case errors.Is(err, errNoAnswer):
					what = "hung"
				case engine.CoreDied(x.Tail):
					what, err = "ended while ready", errors.New("its EngineCore died unexpectedly")
				case se != nil:
					what = "answers with errors alone"
				}
				return r.failed(fmt.Sprintf("%s %s: %v", r.o.Spec.Engine, what, err))
			}
		case <-r.commandReady:
			w := r.takeCommands()
			if w.unload {
				return r.draining(w)
			}
			if w.changed {
				r.notify()
			}
			if w.suspect != "" {
				probe(w.suspect)
			}
			if w.sleep != nil && w.sleep.level > 0 {
				if engine.Sleeps(r.o.Spec) {
					return r.sleeping(*w.sleep)
				}
				r.log.Warn("told to sleep, which this engine cannot", "why", w.sleep.why)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// errNoAnswer is the verdict on an engine that hangs.
var errNoAnswer = fmt.Errorf("no answer to a one-token request within %s", probeWait)

type reading struct {
	engine.Metrics
	at  time.Time // when it was asked for
	err error
	ill string // what /health says, if it is bad
}

func (r *Replica) readMetrics(ctx context.Context, within time.Duration) reading {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	at := time.Now()
	m, err := r.eng.Metrics(ctx)
	return reading{Metrics: m, at: at, err: err}
}

// checkEngine is a reading with what /health says, which is no verdict (it is 200 of
// an engine whose core stands still), but bad news is news: vLLM answers 503
// seconds before it has ended after the death of its core.
func (r *Replica) checkEngine(ctx context.Context) reading {
	hctx, cancel := context.WithTimeout(ctx, quickReadWait)
	defer cancel()
	ill := make(chan string, 1)
	go func() {
		var se *engine.StatusError
		if err := r.eng.Health(hctx); errors.As(err, &se) {
			ill <- "/health says " + err.Error()
			return
		}
		ill <- ""
	}()
	m := r.readMetrics(ctx, pollWait)
	t := time.NewTimer(healthLate)
	defer t.Stop()
	select {
	case m.ill = <-ill:
	case <-t.C: // silence is no news, and must not keep that of the tokens
		cancel()
		<-ill
	}
	return m
}

// publishMetrics publishes what the engine says; that is no change to tell.
func (r *Replica) publishMetrics(m engine.Metrics) {
	if r.now.InFlight == m.Running && r.now.QueueLength == m.Waiting && r.now.KVCacheHitRate == m.HitRate {
		return
	}
	r.now.InFlight, r.now.QueueLength, r.now.KVCacheHitRate = m.Running, m.Waiting, m.HitRate
	r.publish()
}

// probe asks a suspected engine for one token. nil: it lives. A StatusError:
// it answers, but with errors. Anything else: it hangs, or is gone.
func (r *Replica) probe(ctx context.Context, why string) error {
	before := r.readMetrics(ctx, quickReadWait)
	pctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	err := r.eng.Token(pctx)
	var se *engine.StatusError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &se):
		if se.Busy() {
			return nil
		}
		hctx, cancel := context.WithTimeout(ctx, pollWait)
		defer cancel()
		if herr := r.eng.Health(hctx); herr != nil {
			return fmt.Errorf("%s; then the probe: %v, /health: %v", why, err, herr)
		}
		return err
	case engine.ConnectionRefused(err):
		return fmt.Errorf("%s; it refuses connections", why)
	}
	// Others may have been served meanwhile, and we stood behind them.
	if after := r.readMetrics(ctx, quickReadWait); before.err == nil && after.err == nil && after.Flow && after.Tokens != before.Tokens {
		return nil
	}
	if pctx.Err() != nil {
		return fmt.Errorf("%s; then %w", why, errNoAnswer)
	}
	return fmt.Errorf("%s; then the probe: %v", why, err)
}

// draining is DRAINING: no new requests come, those in flight may finish.
func (r *Replica) draining(w commands) state {
	return func(ctx context.Context) state {
		r.enter(functions.Draining)
		reason := w.reason
		rctx, cancel := context.WithCancel(ctx)
		defer cancel()
		end := time.Now().Add(w.drain)
		limit := time.NewTimer(w.drain)
		defer limit.Stop()
		poll := time.NewTimer(0)
		defer poll.Stop()
		readings, open := make(chan reading, 1), false
		defer func() {
			cancel()
			if open {
				<-readings
			}
		}()
		for {
			select {
			case <-r.child.Exited:
				r.child = nil
				r.forgetProcess(ctx)
				return r.unloaded(reason + "; it ended by itself")
			case <-poll.C:
				open = true
				go func() { readings <- r.readMetrics(rctx, pollWait) }()
			case m := <-readings:
				open = false
				if m.err == nil {
					r.publishMetrics(m.Metrics)
				}
				if r.idle(m) {
					r.terminate(ctx)
					return r.unloaded(reason)
				}
				poll.Reset(drainEvery)
			case <-limit.C:
				r.abortRequests(rctx, reason)
				r.terminate(ctx)
				return r.unloaded(reason)
			case <-r.commandReady:
				if again := r.takeCommands(); again.unload {
					if t := time.Now().Add(again.drain); t.Before(end) {
						end = t
						limit.Reset(again.drain)
					}
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// abortRequests ends what is in flight from our side, and lets the engine notice: a vLLM
// that is told to end with a stream open hangs until the stream is closed.
func (r *Replica) abortRequests(ctx context.Context, reason string) {
	if r.now.InFlight == 0 && (r.o.InFlight == nil || r.o.InFlight() == 0) {
		return
	}
	r.log.Warn("drain deadline over with requests in flight", "requests", r.now.InFlight)
	if r.o.AbortRequests == nil {
		return
	}
	r.o.AbortRequests(reason)
	for end := time.Now().Add(cutWait); time.Now().Before(end); {
		if r.idle(r.readMetrics(ctx, cutWait)) || sleepContext(ctx, cutWait/10) != nil {
			return
		}
	}
}

// idle: all that know of requests say there are none, and somebody knows.
func (r *Replica) idle(m reading) bool {
	known := false
	if r.o.InFlight != nil {
		if r.o.InFlight() > 0 {
			return false
		}
		known = true
	}
	if m.err == nil {
		if m.Running+m.Waiting > 0 {
			return false
		}
		known = true
	}
	return known
}

// terminate asks the group to end, and kills it when it does not.
func (r *Replica) terminate(ctx context.Context) {
	if r.child == nil {
		return
	}
	r.signal(ctx, syscall.SIGTERM)
	if _, ok := r.waitExit(termGrace); !ok {
		r.kill(ctx)
		return
	}
	r.child = nil
	r.forgetProcess(ctx)
}

// kill ends the group at once. Its exit, if it was heard of in time.
func (r *Replica) kill(ctx context.Context) supervisor.Exit {
	if r.child == nil {
		return supervisor.Exit{}
	}
	r.signal(ctx, syscall.SIGKILL)
	x, ok := r.waitExit(killWait)
	if !ok {
		r.log.Error("a killed engine does not go", "pid", r.child.PID)
	}
	r.child = nil
	r.forgetProcess(ctx)
	return x
}

func (r *Replica) waitExit(within time.Duration) (supervisor.Exit, bool) {
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case x := <-r.child.Exited:
		return x, true
	case <-t.C:
		return supervisor.Exit{}, false
	}
}

// signal reaches the process even where ctx has just ended: a decision to end
// an engine is carried out.
func (r *Replica) signal(ctx context.Context, sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.o.Spawner.Signal(ctx, r.o.ID, sig); err != nil {
		r.log.Error("signal", "signal", sig, "error", err)
	}
}

func (r *Replica) forgetProcess(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.o.Spawner.Forget(ctx, r.o.ID); err != nil && !errors.Is(err, supervisor.ErrLost) {
		r.log.Debug("forget", "error", err)
	}
}
