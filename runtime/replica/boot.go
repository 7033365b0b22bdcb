package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
	r        *Replica
	began    time.Time
	mayRetry bool // a start whose port was taken is tried again

	stopProbes func()               // ends awaitToken and the log follower and waits for them
	ready      chan struct{}        // closed when the engine notified READY=1
	events     chan bootEvent       // from awaitToken
	notices    <-chan engine.Notice // from the engine's notify socket; nil when there are no more
	lines      chan line            // from the engine's log
	steps      *engine.Steps
	logSteps   bool                 // the log reports steps, so phases are made from them
	failing    <-chan time.Time     // set when the log reports a failed start; fires when the engine is killed
	rest       <-chan stagingResult // the rest of a checkpoint that is still arriving; nil otherwise
	limit      *time.Timer          // the start's deadline; stopped while rest is awaited

	listeningAt, healthyAt time.Time // zero before
	gotToken               bool
}

// bootEnd is how a boot ended: with the next state, or with another try.
type bootEnd struct {
	next  state
	retry bool
}

// booting follows a spawned engine until it has generated a token. retry reports
// that its port was taken and mayRetry was set.
func (r *Replica) booting(ctx context.Context, began, deadline time.Time, notices <-chan engine.Notice, mayRetry bool) (next state,
	retry bool) {
	b := &boot{
		r: r, began: began, mayRetry: mayRetry, notices: notices,
		ready: make(chan struct{}), events: make(chan bootEvent, 4), lines: make(chan line, 64),
		steps: engine.NewSteps(r.o.Spec.Engine, began), limit: time.NewTimer(time.Until(deadline)),
	}
	defer b.limit.Stop()
	bctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	b.stopProbes = func() { cancel(); probes.Wait() }
	defer b.stopProbes()
	probes.Go(func() { r.awaitToken(bctx, b.ready, b.events) })
	if r.adopt == nil && b.steps.Follows() {
		path, from := r.child.Log, r.logFrom
		probes.Go(func() { followLog(bctx, path, from, b.lines) })
	}
	var report <-chan time.Time
	if r.early != nil && !r.early.finished {
		// The deadline counts from the end of the staging.
		b.rest = r.early.rest
		b.limit.Stop()
		t := time.NewTicker(stagingReportEvery)
		defer t.Stop()
		report = t.C
	}
	for {
		var end *bootEnd
		select {
		case n, ok := <-b.notices:
			b.onNotice(n, ok)
		case e := <-b.events:
			end = b.onEvent(ctx, e)
		case l := <-b.lines:
			b.onLine(l)
		case <-b.failing:
			end = b.onFailing(ctx)
		case s := <-b.rest:
			report = nil
			end = b.onStaged(ctx, s)
		case <-report:
			r.reportStaging()
		case x := <-r.child.Exited:
			end = b.onExit(ctx, x)
		case <-b.limit.C:
			end = b.onDeadline(ctx)
		case <-r.commandReady:
			if c := r.takeCommands(); c.unload { // spawned: CancelStart comes too late
				r.enter(functions.Draining)
				r.terminate(ctx)
				end = &bootEnd{next: r.unloaded(c.reason)}
			}
		case <-ctx.Done():
			return nil, false
		}
		if end != nil {
			return end.next, end.retry
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
		b.r.addPhase(functions.PhaseSpawn, b.began, at)
	}
}

// healthy records that the engine serves; what is left is its first token.
func (b *boot) healthy(at time.Time) {
	b.listening(at)
	if !b.healthyAt.IsZero() {
		return
	}
	b.healthyAt = at
	if b.logSteps {
		b.steps.Serving(at)
	} else {
		b.r.addPhase(functions.PhaseLoad, b.listeningAt, at)
	}
	b.r.progress(100)
}

// onNotice handles a datagram of the notify socket.
func (b *boot) onNotice(n engine.Notice, ok bool) {
	if !ok {
		b.notices = nil
		return
	}
	b.listening(time.Now())
	if n.Percent >= 0 {
		b.r.progress(n.Percent)
	}
	if n.Ready {
		b.healthy(time.Now())
		close(b.ready)
		b.notices = nil
	}
}

// onEvent handles a step of awaitToken.
func (b *boot) onEvent(ctx context.Context, e bootEvent) *bootEnd {
	r := b.r
	switch {
	case e.listening:
		b.listening(e.at)
	case e.healthy:
		b.healthy(e.at)
	case e.err != nil:
		if ctx.Err() != nil {
			return &bootEnd{}
		}
		b.stopProbes()
		// A dying engine refuses connections before its exit is reported; the
		// exit has the cause.
		if x, ok := r.waitExit(exitAfterError); ok {
			return b.exited(ctx, x)
		}
		r.kill(ctx)
		return &bootEnd{next: r.failed(fmt.Sprintf("%s: first token: %v", r.o.Spec.Engine, e.err))}
	default:
		if b.logSteps {
			r.setLogPhases(b.steps.End(e.at), "")
		} else {
			r.addPhase(functions.PhaseWarmup, b.healthyAt, e.at)
		}
		if b.rest == nil {
			return &bootEnd{next: r.ready}
		}
		b.gotToken = true // READY waits until every byte is verified
	}
	return nil
}

// onLine reads steps, progress and failure from a line of the log.
func (b *boot) onLine(l line) {
	r := b.r
	if b.healthyAt.IsZero() {
		if b.steps.Line(l.text, l.at) {
			b.logSteps = true
			now, _ := b.steps.Current()
			r.setLogPhases(b.steps.Done(), now.Phase)
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
func (b *boot) onFailing(ctx context.Context) *bootEnd {
	r := b.r
	cause := r.rootCause(r.logTail(r.kill(ctx)), "it failed to start")
	if b.mayRetry && engine.PortTaken(cause) {
		return &bootEnd{retry: true}
	}
	return &bootEnd{next: r.failed(fmt.Sprintf("%s ended while loading: %s", r.o.Spec.Engine, cause))}
}

func (b *boot) onStaged(ctx context.Context, s stagingResult) *bootEnd {
	r := b.r
	b.rest, r.early.finished = nil, true
	r.addPhase(functions.PhaseStage, r.early.began, time.Now())
	if s.err != nil {
		if ctx.Err() != nil {
			return &bootEnd{}
		}
		r.kill(ctx)
		return &bootEnd{next: r.failed("stage: " + cancelCause(r.early.ctx, s.err).Error())}
	}
	r.ckpt = s.ckpt
	r.now.Bytes, r.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
	if b.gotToken {
		return &bootEnd{next: r.ready}
	}
	r.notify()
	b.limit.Reset(r.o.Spec.Deadlines.Start.Std())
	return nil
}

// onExit handles the engine's end. A failed staging is its cause, if there is one.
func (b *boot) onExit(ctx context.Context, x supervisor.Exit) *bootEnd {
	r := b.r
	if err := r.stagingError(b.rest); err != nil && ctx.Err() == nil {
		r.forgetProcess(ctx)
		return &bootEnd{next: r.failed("stage: " + err.Error())}
	}
	return b.exited(ctx, x)
}

func (b *boot) exited(ctx context.Context, x supervisor.Exit) *bootEnd {
	next, retry := b.r.engineExited(ctx, x, "loading", b.mayRetry)
	return &bootEnd{next, retry}
}

// onDeadline kills an engine that was not ready in time.
func (b *boot) onDeadline(ctx context.Context) *bootEnd {
	r := b.r
	b.stopProbes()
	answer, problem := r.eng.LastAnswer(), "not ready"
	answer = cmp.Or(answer, "no answer")
	if !b.healthyAt.IsZero() {
		problem = "no first token"
	}
	bound, deadline := r.o.Spec.Deadlines.Start, "start"
	if r.adopt != nil && time.Since(b.began) > bound.Std() {
		bound, deadline = r.o.Spec.Deadlines.FirstToken, "firstToken"
	}
	x := r.kill(ctx)
	cause := r.rootCause(r.logTail(x), answer)
	if !strings.HasPrefix(cause, answer) {
		cause = answer + "; " + cause
	}
	return &bootEnd{next: r.failed(fmt.Sprintf("%s: %s within %s (deadlines.%s): %s", r.o.Spec.Engine, problem, bound, deadline, cause))}
}

// awaitToken waits until the engine serves and has generated one token.
func (r *Replica) awaitToken(ctx context.Context, ready <-chan struct{}, events chan<- bootEvent) {
	// READY=1 on the notify socket ends the probing.
	actx, stop := context.WithCancel(ctx)
	defer stop()
	statuses := make(chan struct{})
	go func() {
		defer close(statuses)
		select {
		case <-ready:
			stop()
		case <-actx.Done():
		}
	}()
	err := r.eng.Await(actx, func() { events <- bootEvent{listening: true, at: time.Now()} })
	stop()
	<-statuses
	if err != nil {
		select {
		case <-ready:
		default:
			events <- bootEvent{err: err, at: time.Now()}
			return
		}
	}
	events <- bootEvent{healthy: true, at: time.Now()}
	events <- bootEvent{err: r.awaitFirstToken(ctx), at: time.Now()}
}

// awaitFirstToken requests a token until the engine generates one: an engine with a good
// /health may answer with errors until its model is loaded. It returns the error of an
// engine that does nothing but refuse the request's credentials, and ctx's.
func (r *Replica) awaitFirstToken(ctx context.Context) error {
	began := time.Now()
	var deniedAt time.Time // when the engine began to refuse; zero: it does not
	for {
		err := r.eng.Token(ctx)
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
		pause := engine.ProbeInterval(time.Since(began))
		if se == nil || !se.Busy() {
			pause *= 5 // a request for each endpoint was sent
		}
		if !backoff.Sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// exited makes FAILED of the unexpected exit of an engine that had started.
func (r *Replica) exited(ctx context.Context, x supervisor.Exit, while string) state {
	next, _ := r.engineExited(ctx, x, while, false)
	return next
}

// engineExited makes FAILED of an unexpected exit, or another try if its port was
// taken.
func (r *Replica) engineExited(ctx context.Context, x supervisor.Exit, while string, mayRetry bool) (next state, retry bool) {
	r.forgetProcess(ctx)
	how := x.String()
	cause := how
	// The log of an engine that was killed from outside has no cause.
	if x.Signal != syscall.SIGKILL && x.Signal != syscall.SIGTERM && !x.Lost {
		text := x.Tail
		if while == "loading" {
			text = r.logTail(x)
		}
		cause = r.rootCause(text, how)
		if strings.HasPrefix(cause, "out of GPU memory") {
			cause = r.addGPUHolders(cause)
		}
	}
	if mayRetry && engine.PortTaken(cause) {
		return nil, true
	}
	text := fmt.Sprintf("%s ended while %s: %s", r.o.Spec.Engine, while, cause)
	if while == "loading" && r.mayBeDamaged(x, cause) {
		return r.verifying(text), false
	}
	return r.failed(text), false
}
