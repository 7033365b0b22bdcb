package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// monitor watches a READY engine. It is owned by Run's goroutine; one reading and
// one probe at a time run beside it.
type monitor struct {
	r        *Replica
	hang     *hangDetector
	readings chan reading // of the reading under way
	verdicts chan error   // of the probe under way
	reading  bool
	probing  bool
	failures int       // probes in a row that were answered with errors
	reason   string    // of the newest probe, for the next
	again    time.Time // when the next probe follows one that was answered with an error
}

// ready is READY: the engine is watched until it ends, hangs, is drained or put to
// sleep.
func (r *Replica) ready(ctx context.Context) state {
	r.files.finish(ctx)
	r.report.now.Weights = r.files.ckpt.Digest
	r.report.enter(functions.Ready)
	if a, ok := r.eng.(adapterEngine); ok {
		r.adapters.setEngine(a)
		defer r.adapters.setEngine(nil)
	}
	rctx, cancel := context.WithCancel(ctx)
	d := r.o.Spec.Deadlines
	m := &monitor{r: r, hang: newHangDetector(d.Hang.Std(), d.FirstToken.Std(), time.Now()),
		readings: make(chan reading, 1), verdicts: make(chan error, 1)}
	m.hang.idleSeen = !r.report.adopted // only the warm-up was served, and it has finished
	poll := time.NewTimer(pollEvery)
	defer poll.Stop()
	defer func() {
		cancel()
		m.wait()
	}()
	m.read(rctx) // before requests that waited for READY arrive: this reading is of an idle engine
	for {
		select {
		case x := <-r.process.child.Exited:
			return r.exited(ctx, x, "ready", nil)
		case <-poll.C:
			m.read(rctx)
		case n := <-m.readings:
			m.onReading(rctx, n)
			poll.Reset(m.hang.next(time.Now()))
		case err := <-m.verdicts:
			if next := m.onVerdict(ctx, err); next != nil {
				return next
			}
		case <-r.commands.ready:
			if next := m.onCommand(rctx); next != nil {
				return next
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read starts a reading of metrics and health.
func (m *monitor) read(ctx context.Context) {
	if !m.reading {
		m.reading = true
		go func() { m.readings <- checkEngine(ctx, m.r.eng) }()
	}
}

// probe asks the engine for a token; why is for the log.
func (m *monitor) probe(ctx context.Context, reason string) {
	if m.probing {
		return
	}
	m.probing, m.reason = true, reason
	m.r.log.Warn("engine suspected", "why", reason)
	go func() { m.verdicts <- probeEngine(ctx, m.r.eng, reason) }()
}

// wait waits for the reading and the probe under way.
func (m *monitor) wait() {
	if m.reading {
		<-m.readings
	}
	if m.probing {
		<-m.verdicts
	}
}

// onReading publishes a reading and probes the engine if it looks broken.
func (m *monitor) onReading(ctx context.Context, n reading) {
	m.reading = false
	m.r.report.publishMetrics(n)
	now, traffic := time.Now(), m.r.o.Traffic(m.r.report.now.Endpoint)
	if reason := m.hang.observe(n.at, now, n.Metrics, n.err, traffic); reason != "" {
		m.probe(ctx, reason)
	} else if n.unhealthy != "" && !m.hang.working(now, traffic) {
		m.probe(ctx, n.unhealthy)
	} else if m.failures > 0 && !now.Before(m.again) {
		m.probe(ctx, m.reason)
	}
}

// onVerdict handles the outcome of a probe; nil stays in READY.
func (m *monitor) onVerdict(ctx context.Context, err error) state {
	r := m.r
	m.probing = false
	var se *engine.StatusError
	switch {
	case err == nil:
		m.failures = 0
		m.hang.cleared(time.Now())
		r.log.Info("engine answered the probe")
		return nil
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &se) && m.failures+1 < probeTries:
		m.failures++ // it answers, but with errors
		m.again = time.Now().Add(probePause)
		m.hang.cleared(time.Now())
		return nil
	case se == nil && m.hang.working(time.Now(), r.o.Traffic(r.report.now.Endpoint)):
		r.log.Info("the probe was not answered, but requests are served", "error", err)
		return nil
	}
	if x, ok := r.process.waitExit(exitAfterProbe); ok {
		return r.exited(ctx, x, "ready", nil)
	}
	if errors.Is(err, errNoAnswer) && r.o.AbortRequests != nil {
		r.o.AbortRequests(r.report.now.Endpoint, err.Error()) // before the kill: the engine did not crash with them
	}
	x := r.process.kill(ctx)
	cause := "is broken"
	switch {
	case errors.Is(err, errNoAnswer):
		cause = "hung"
	case engine.CoreDied(x.Tail):
		cause, err = "ended while ready", errors.New("its EngineCore died unexpectedly")
	case se != nil:
		cause = "answers with errors alone"
	}
	return r.failed(fmt.Sprintf("%s %s: %v", r.o.Spec.Engine, cause, err))
}

// onCommand handles commands of the owner; nil stays in READY.
func (m *monitor) onCommand(ctx context.Context) state {
	r := m.r
	c := r.commands.take()
	if c.unload {
		return r.draining(c)
	}
	if c.changed {
		r.report.notify()
	}
	if c.suspect != "" {
		m.probe(ctx, c.suspect)
	}
	if c.sleep != nil && c.sleep.level > 0 {
		if engine.Sleeps(r.o.Spec) {
			return (&sleep{r: r, sleepRequest: *c.sleep}).run
		}
		r.log.Warn("this engine cannot sleep", "why", c.sleep.why)
	}
	return nil
}

// errNoAnswer is the outcome of a probe of an engine that hangs.
var errNoAnswer = fmt.Errorf("no answer to a one-token request within %s", probeWait)

type reading struct {
	engine.Metrics
	at        time.Time // when the request was sent
	err       error
	unhealthy string // the answer of /health if it is an error
}

func readMetrics(ctx context.Context, eng Engine, within time.Duration) reading {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	at := time.Now()
	m, err := eng.Metrics(ctx)
	return reading{Metrics: m, at: at, err: err}
}

// checkEngine reads metrics and /health. A good /health proves nothing (an engine with
// a hanging core answers 200), but vLLM answers 503 seconds before it exits after the
// death of its core.
func checkEngine(ctx context.Context, eng Engine) reading {
	hctx, cancel := context.WithTimeout(ctx, quickReadWait)
	defer cancel()
	unhealthy := make(chan string, 1)
	go func() {
		problem, err := "", eng.Health(hctx)
		if _, ok := errors.AsType[*engine.StatusError](err); ok {
			problem = "/health: " + err.Error()
		}
		unhealthy <- problem
	}()
	m := readMetrics(ctx, eng, pollWait)
	select {
	case m.unhealthy = <-unhealthy:
	case <-time.After(healthLate): // do not delay the metrics
		cancel()
		<-unhealthy
	}
	return m
}

// probeEngine asks a suspected engine for one token. It returns nil if the engine works, a
// StatusError if it answers with an error, another error if it hangs or is gone.
func probeEngine(ctx context.Context, eng Engine, reason string) error {
	before := readMetrics(ctx, eng, quickReadWait)
	pctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	err := eng.Token(pctx)
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
		if herr := eng.Health(hctx); herr != nil {
			return fmt.Errorf("%s; then the probe: %v, /health: %v", reason, err, herr)
		}
		return err
	case engine.ConnectionRefused(err):
		return fmt.Errorf("%s; it refuses connections", reason)
	}
	// It may have been generating for requests before this one.
	if after := readMetrics(ctx, eng, quickReadWait); before.err == nil && after.err == nil && after.Flow && after.Tokens != before.Tokens {
		return nil
	}
	if pctx.Err() != nil {
		return fmt.Errorf("%s; then %w", reason, errNoAnswer)
	}
	return fmt.Errorf("%s; then the probe: %v", reason, err)
}
