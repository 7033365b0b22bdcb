package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// bootEvent is one step of awaitToken, with its time.
type bootEvent struct {
	listening, healthy bool
	at                 time.Time
	err                error
}

// boot follows one spawned engine until it has generated a token. It is owned by
// Run's goroutine.
type boot struct {
	r     *Replica
	began time.Time
	again state // after a start whose port was taken; nil: no other try is left

	stopProbes func()               // ends awaitToken and the log follower and waits for them
	notified   func(cause error)    // ends the wait for health: the engine notified READY=1
	events     chan bootEvent       // from awaitToken
	notices    <-chan engine.Notice // from the engine's notify socket; nil when there are no more
	lines      chan line            // from the engine's log
	steps      *engine.Steps
	logSteps   bool                 // the log reports steps, so phases are made from them
	failing    <-chan time.Time     // set when the log reports a failed start; fires when the engine is killed
	rest       <-chan stagingResult // the rest of a checkpoint that is still arriving; nil otherwise
	limit      *time.Timer          // the start's deadline; stopped while rest is awaited

	listeningAt, healthyAt time.Time              // zero before
	note, problem          string                 // the start's note, and in its place what the engine does instead of serving
	refused                atomic.Pointer[string] // its newest answer to a request for a token, if that is an error and it is not busy
	gotToken               bool
}

// booting follows a spawned engine until it has generated a token. again, if not nil, follows
// if its port was taken.
func (r *Replica) booting(ctx context.Context, began, deadline time.Time, notices <-chan engine.Notice, again state) state {
	b := &boot{
		r: r, began: began, again: again, notices: notices, note: r.report.now.StartNote,
		events: make(chan bootEvent, 4), lines: make(chan line, 64),
		steps: engine.NewSteps(r.o.Spec.Engine, began), limit: time.NewTimer(time.Until(deadline)),
	}
	defer b.limit.Stop()
	bctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	b.stopProbes = func() { cancel(); probes.Wait() }
	defer b.stopProbes()
	hctx, notified := context.WithCancelCause(bctx)
	b.notified = notified
	probes.Go(func() { awaitToken(bctx, hctx, r.eng, b.events, &b.refused) })
	if !r.report.adopted && b.steps.Follows() {
		path, from := r.process.logPath(), r.process.logFrom
		probes.Go(func() { followLog(bctx, path, from, b.lines) })
	}
	var report <-chan time.Time
	if early := r.files.early; early != nil && !early.finished {
		// The deadline counts from the end of the staging.
		b.rest = early.rest
		b.limit.Stop()
		t := time.NewTicker(stagingReportEvery)
		defer t.Stop()
		report = t.C
	}
	look := time.NewTicker(problemEvery)
	defer look.Stop()
	for {
		var next state
		select {
		case <-look.C:
			b.findProblem()
		case n, ok := <-b.notices:
			b.onNotice(n, ok)
		case e := <-b.events:
			next = b.onEvent(ctx, e)
		case l := <-b.lines:
			b.onLine(l)
		case <-b.failing:
			next = b.onFailing(ctx)
		case s := <-b.rest:
			report = nil
			next = b.onStaged(ctx, s)
		case <-report:
			r.report.stagingProgress(r.files.progress())
		case x := <-r.process.child.Exited:
			next = b.onExit(ctx, x)
		case <-b.limit.C:
			next = b.onDeadline(ctx)
		case <-r.commands.ready:
			if c := r.commands.take(); c.unload { // spawned: CancelStart comes too late
				next = r.terminate(ctx, c.reason)
			}
		case <-ctx.Done():
			return nil
		}
		if next != nil {
			return next
		}
	}
}

// listening records that the engine accepts connections.
func (b *boot) listening(at time.Time) {
	if !b.listeningAt.IsZero() {
		return
	}
	b.listeningAt = at
	if !b.logSteps {
		b.r.report.addPhase(functions.PhaseSpawn, b.began, at)
	}
}

// findProblem shows what keeps an engine of a model file's own command from serving: it listens elsewhere,
// or answers with errors that are not those of a loading model.
func (b *boot) findProblem() {
	r, problem := b.r, ""
	if r.o.Spec.Engine != functions.EngineCommand {
		return
	}
	switch refused := b.refused.Load(); {
	case b.listeningAt.IsZero():
		if at := supervisor.Listening(r.process.child.PID); len(at) > 0 {
			problem = fmt.Sprintf("it listens on %s, and not on %s, which it was given as its address ({port} in args; localhost may be ::1 alone)",
				strings.Join(at[:min(len(at), 4)], ", "), strings.TrimPrefix(r.report.now.Endpoint, "http://"))
		}
	case !b.healthyAt.IsZero() && refused != nil:
		problem = *refused
	case b.healthyAt.IsZero() && !strings.Contains(r.eng.LastAnswer(), "HTTP 503"):
		problem = r.eng.LastAnswer()
	}
	b.showProblem(problem)
}

// showProblem shows a problem of findProblem, or the note from before without one.
func (b *boot) showProblem(problem string) {
	if problem == b.problem {
		return
	}
	b.problem, b.r.report.now.StartNote = problem, b.note
	if problem != "" {
		b.r.report.now.StartNote = functions.SoFar + problem
	}
	b.r.report.notify()
}

// healthy records that the engine serves; what is left is its first token.
func (b *boot) healthy(at time.Time) {
	b.listening(at)
	if !b.healthyAt.IsZero() {
		return
	}
	b.showProblem("")
	b.healthyAt = latest(at, b.listeningAt) // notices and probes are not handled in the order of their times
	if b.logSteps {
		b.steps.Serving(b.healthyAt)
	} else {
		b.r.report.addPhase(functions.PhaseLoad, b.listeningAt, b.healthyAt)
	}
	b.r.report.progress(100)
}

// onNotice handles a datagram of the notify socket.
func (b *boot) onNotice(n engine.Notice, ok bool) {
	if !ok {
		b.notices = nil
		return
	}
	b.listening(time.Now())
	if n.Percent >= 0 {
		b.r.report.progress(n.Percent)
	}
	if n.Ready {
		b.notified(errNotified)
		b.notices = nil
	}
}

// onEvent handles a step of awaitToken. Like all of boot's handlers it returns the next state,
// nil to go on.
func (b *boot) onEvent(ctx context.Context, e bootEvent) state {
	r := b.r
	switch {
	case e.listening:
		b.listening(e.at)
	case e.healthy:
		b.healthy(e.at)
	case e.err != nil:
		if ctx.Err() != nil {
			return endRun
		}
		b.stopProbes()
		text := e.err.Error()
		if _, answered := errors.AsType[*engine.StatusError](e.err); answered {
			text = cmp.Or(r.eng.LastAnswer(), text)
		}
		return r.callFailed(ctx, "loading", fmt.Sprintf("%s: first token: %s", r.o.Spec.Engine, text), b.again)
	default:
		b.showProblem("")
		at := latest(e.at, b.healthyAt)
		if b.logSteps {
			r.report.setLogPhases(b.steps.End(at), "")
		} else {
			r.report.addPhase(functions.PhaseWarmup, b.healthyAt, at)
		}
		if b.rest == nil {
			return r.ready
		}
		b.gotToken = true // READY waits until every byte is verified
	}
	return nil
}

// onLine reads steps, progress and failure from a line of the log.
func (b *boot) onLine(l line) {
	r := &b.r.report
	if b.healthyAt.IsZero() {
		if b.steps.Line(l.text, l.at) {
			b.logSteps = true
			now, _ := b.steps.Current()
			r.setLogPhases(b.steps.Done, now.Phase)
			r.now.Percent = -1
			r.notify()
			return
		}
		if p, ok := engine.Percent(l.text); ok {
			r.progress(p)
			return
		}
	}
	if b.failing == nil && b.steps.StartFailed(l.text) {
		b.failing = time.After(failedStartWait)
	}
}

// rootCause is engine.RootCause with the nearest flag for one that is wrong; where the engine
// runs confined it names that for causes that confinement has.
func (r *Replica) rootCause(tail, how string) string {
	cause := engine.NameFlag(r.o.Spec.Engine, engine.RootCause(tail, how))
	if r.o.Confine != nil {
		cause = engine.NameConfinement(cause)
	}
	return cause
}

// onFailing kills an engine that reported a failed start and has not exited.
func (b *boot) onFailing(ctx context.Context) state {
	r := b.r
	cause := r.rootCause(r.process.tail(r.process.kill(ctx)), "it failed to start")
	if b.again != nil && engine.PortTaken(cause) {
		return b.again
	}
	return r.failed(fmt.Sprintf("%s ended while loading: %s", r.o.Spec.Engine, cause))
}

func (b *boot) onStaged(ctx context.Context, s stagingResult) state {
	r := b.r
	early := r.files.early
	b.rest, early.finished = nil, true
	r.report.addPhase(functions.PhaseStage, early.began, time.Now())
	if s.err != nil {
		if ctx.Err() != nil {
			return endRun
		}
		r.process.kill(ctx)
		return r.failed("stage: " + cancelCause(early.ctx, s.err).Error())
	}
	r.files.ckpt = s.ckpt
	r.report.now.Bytes, r.report.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
	if b.gotToken {
		return r.ready
	}
	r.report.notify()
	b.limit.Reset(r.o.Spec.Deadlines.Start.Std())
	return nil
}

// onExit handles the engine's end. A failed staging is its cause, if there is one.
func (b *boot) onExit(ctx context.Context, x supervisor.Exit) state {
	r := b.r
	if err := r.files.restError(b.rest); err != nil && ctx.Err() == nil {
		r.process.forget(ctx)
		return r.failed("stage: " + err.Error())
	}
	return r.exited(ctx, x, "loading", b.again)
}

// onDeadline kills an engine that was not ready in time.
func (b *boot) onDeadline(ctx context.Context) state {
	r := b.r
	b.stopProbes()
	answer, problem := cmp.Or(r.eng.LastAnswer(), "no answer"), "not ready"
	if !b.healthyAt.IsZero() {
		problem = "no first token"
	}
	bound, deadline := r.o.Spec.Deadlines.Start, "start"
	if r.report.adopted && time.Since(b.began) > bound.Std() {
		bound, deadline = r.o.Spec.Deadlines.FirstToken, "firstToken"
	}
	if b.listeningAt.IsZero() {
		answer = cmp.Or(b.problem, answer)
	}
	cause := r.rootCause(r.process.tail(r.process.kill(ctx)), answer)
	if !strings.HasPrefix(cause, answer) {
		cause = answer + "; " + cause
	}
	return r.failed(fmt.Sprintf("%s: %s within %s (deadlines.%s): %s", r.o.Spec.Engine, problem, bound, deadline, cause))
}

// errNotified is the cause of the end of an engine's wait for health by READY=1.
var errNotified = errors.New("the engine notified that it is ready")

// awaitToken waits until the engine serves, or healthCtx has ended with errNotified, and has
// generated one token.
func awaitToken(ctx, healthCtx context.Context, eng Engine, events chan<- bootEvent, refused *atomic.Pointer[string]) {
	err := eng.Await(healthCtx, func() { events <- bootEvent{listening: true, at: time.Now()} })
	if err != nil && context.Cause(healthCtx) != errNotified {
		events <- bootEvent{err: err, at: time.Now()}
		return
	}
	events <- bootEvent{healthy: true, at: time.Now()}
	events <- bootEvent{err: awaitFirstToken(ctx, eng, refused), at: time.Now()}
}

// awaitFirstToken requests a token until the engine generates one: an engine with a good
// /health may answer with errors until its model is loaded. It returns the error of an
// engine that does nothing but refuse the request's credentials, and ctx's. refused is set to
// the newest answer, if that is an error and the engine is not busy.
func awaitFirstToken(ctx context.Context, eng Engine, refused *atomic.Pointer[string]) error {
	began := time.Now()
	var deniedAt time.Time // when the engine began to refuse; zero: it does not
	for {
		err := eng.Token(ctx)
		var se *engine.StatusError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &se) || !se.Denied():
			deniedAt = time.Time{}
		case deniedAt.IsZero():
			deniedAt = time.Now()
		case time.Since(deniedAt) >= deniedWait:
			return err
		}
		refused.Store(nil)
		if answer := eng.LastAnswer(); se != nil && !se.Busy() {
			refused.Store(&answer)
		}
		pause := engine.ProbeInterval(time.Since(began))
		if se == nil || !se.Busy() {
			pause *= 5 // a request for each endpoint was sent
		}
		if !backoff.Sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// callFailed makes FAILED of an engine of which a call failed. One that is dying refuses
// connections before its exit is reported; the exit has the cause.
func (r *Replica) callFailed(ctx context.Context, while, problem string, again state) state {
	if x, ok := r.process.waitExit(exitAfterError); ok {
		return r.exited(ctx, x, while, again)
	}
	r.process.kill(ctx)
	return r.failed(problem)
}

// exited makes FAILED of an unexpected exit. again, if not nil, follows if the port was taken.
func (r *Replica) exited(ctx context.Context, x supervisor.Exit, while string, again state) state {
	r.process.forget(ctx)
	how := x.String()
	if while == "ready" && how == "exit code 0" {
		how = "by itself, " + how // it has been in the foreground
	}
	cause := how
	// The log of an engine that was killed from outside has no cause.
	if x.Signal != syscall.SIGKILL && x.Signal != syscall.SIGTERM && !x.Lost {
		text := x.Tail
		if while == "loading" {
			text = r.process.tail(x)
		}
		cause = r.rootCause(text, how)
		if strings.HasPrefix(cause, "out of GPU memory") {
			cause = r.gpus.addHolders(cause)
		}
	}
	if again != nil && engine.PortTaken(cause) {
		return again
	}
	text := fmt.Sprintf("%s ended while %s: %s", r.o.Spec.Engine, while, cause)
	if while == "loading" && r.files.mayBeDamaged(x, cause) {
		return r.verifying(text)
	}
	return r.failed(text)
}
