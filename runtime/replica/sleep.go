package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/engine"
)

const (
	// sleepWait bounds /sleep once nothing is in flight: weights go to host memory.
	sleepWait = 30 * time.Second
	// wakeWait bounds /wake_up, tokenWait the token after it.
	wakeWait, tokenWait = 30 * time.Second, 15 * time.Second
	// asleepPollEvery is how often the metrics of a sleeping engine are read.
	asleepPollEvery = 2 * time.Second
)

// sleeper is an engine that can sleep; *engine.Client is one.
type sleeper interface {
	Sleep(ctx context.Context, level int, mode engine.SleepMode) error
	Wake(ctx context.Context, level int) error
	// SleepLevel is the level of its sleep, 0 for awake.
	SleepLevel(ctx context.Context) (level int, err error)
}

// sleepRequest is a command to sleep, or with level 0 to wake.
type sleepRequest struct {
	level  int
	why    string
	asleep bool // the engine sleeps already
}

// sleep is one sleep of an engine, until it is READY again. It is owned by Run's goroutine.
type sleep struct {
	r      *Replica
	engine sleeper // set by run
	sleepRequest
}

// run is SLEEPING: the engine finishes requests in flight and falls asleep (SleepLevel is
// set then), until it is woken or ended.
func (s *sleep) run(ctx context.Context) state {
	r, ok := s.r, false
	if s.engine, ok = r.eng.(sleeper); !ok {
		r.log.Warn("this engine cannot sleep", "why", s.why)
		return r.ready
	}
	r.report.enter(functions.Sleeping)
	sctx, cancel := context.WithCancel(ctx)
	asleep := make(chan error, 1)
	falling := true
	go func() { asleep <- s.fallAsleep(sctx) }()
	readings, reading := make(chan reading, 1), false
	defer func() {
		cancel()
		if falling {
			<-asleep
		}
		if reading {
			<-readings
		}
	}()
	look := time.NewTicker(asleepPollEvery)
	defer look.Stop()
	wakeReason := ""
	for {
		select {
		case x := <-r.process.child.Exited:
			return r.exited(ctx, x, "sleeping", nil)
		case err := <-asleep:
			falling = false
			if next := s.fellAsleep(ctx, err); next != nil {
				return next
			}
			if wakeReason != "" {
				return s.waking(wakeReason)
			}
		case <-look.C:
			if !falling && !reading {
				reading = true
				go func() { readings <- readMetrics(sctx, r.eng, pollWait) }()
			}
		case m := <-readings:
			reading = false
			// A request that was sent before the engine slept hangs until it
			// wakes.
			if m.Running+m.Waiting > 0 {
				return s.waking("a request waits in the engine")
			}
		case <-r.commands.ready:
			c := r.commands.take()
			if c.unload {
				return r.draining(c)
			}
			if c.sleep == nil {
				break
			}
			switch {
			case c.sleep.level > 0:
				wakeReason = ""
			case falling:
				wakeReason = c.sleep.why + " "
			default:
				return s.waking(c.sleep.why)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// fellAsleep records the sleep, or ends an engine that failed to fall asleep; nil stays in
// SLEEPING.
func (s *sleep) fellAsleep(ctx context.Context, err error) state {
	r := s.r
	switch {
	case err == nil:
		now := &r.report.now
		now.SleepLevel, now.Tier, now.InFlight, now.QueueLength = s.level, functions.TierSleeping, 0, 0
		r.log.Info("asleep", "level", s.level, "why", s.why)
		r.report.notify()
		return nil
	case ctx.Err() != nil:
		return endRun
	}
	return r.callFailed(ctx, "falling asleep", fmt.Sprintf("%s does not fall asleep: %v", r.o.Spec.Engine, err), nil)
}

// fallAsleep waits for requests in flight, for at most the drain deadline, aborts the
// rest and sends the engine to sleep.
func (s *sleep) fallAsleep(ctx context.Context) error {
	if s.asleep {
		return nil
	}
	drain := s.r.o.Spec.Deadlines.Drain.Std()
	dctx, cancel := context.WithTimeout(ctx, drain+sleepWait)
	defer cancel()
	end := time.Now().Add(drain)
	for { // the engine does not count requests that are on the way to it
		m := readMetrics(dctx, s.r.eng, pollWait)
		if m.idle(s.r.o.InFlight) || !time.Now().Before(end) {
			break
		}
		if !backoff.Sleep(dctx, drainEvery) {
			return context.Cause(dctx)
		}
	}
	mode := engine.SleepWait
	if !time.Now().Before(end) {
		mode = engine.SleepAbort
	}
	err := s.engine.Sleep(dctx, s.level, mode)
	if err != nil && dctx.Err() != nil {
		return fmt.Errorf("no answer to /sleep within %s", drain+sleepWait)
	}
	return err
}

var errWakeTimeout = errors.New("wake hung")

// waking is LOADING_TO_GPU of an engine that slept.
func (s *sleep) waking(reason string) state {
	r := s.r
	return func(ctx context.Context) state {
		began := time.Now()
		r.report.wake(began)
		r.log.Info("waking", "why", reason)
		wctx, cancel := context.WithCancel(ctx)
		awake, token := make(chan time.Time, 1), make(chan error, 1)
		done := false
		go func() { token <- s.wake(wctx, awake) }()
		defer func() {
			cancel()
			if !done {
				<-token
			}
		}()
		loaded := began
		for {
			select {
			case at := <-awake:
				r.report.addPhase(functions.PhaseLoad, began, at)
				loaded = at
			case err := <-token:
				done = true
				if ctx.Err() != nil {
					return nil
				}
				if err == nil {
					r.report.addPhase(functions.PhaseWarmup, loaded, time.Now())
					return r.ready
				}
				return r.callFailed(ctx, "waking", fmt.Sprintf("%s: %v", r.o.Spec.Engine, err), nil)
			case x := <-r.process.child.Exited:
				return r.exited(ctx, x, "waking", nil)
			case <-r.commands.ready:
				if c := r.commands.take(); c.unload {
					return r.terminate(ctx, c.reason)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// wake wakes the engine and requests a token. It sends on awake between the two.
func (s *sleep) wake(ctx context.Context, awake chan<- time.Time) error {
	r := s.r
	limit, start := wakeWait, r.o.Spec.Deadlines.Start.Std()
	if s.level > 1 { // the weights are read again
		limit = max(limit, start)
	}
	for end := time.Now().Add(start); ; { // another engine may be freeing it
		problem := r.gpus.missing()
		if problem == "" {
			break
		}
		if !time.Now().Before(end) {
			return errors.New(r.gpus.insufficient(problem))
		}
		if !backoff.Sleep(ctx, freeEvery) {
			return context.Cause(ctx)
		}
	}
	wctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.engine.Wake(wctx, s.level); err != nil {
		if wctx.Err() != nil {
			return fmt.Errorf("%w: no answer to /wake_up within %s", errWakeTimeout, limit)
		}
		return fmt.Errorf("wake failed: %w", err)
	}
	if a, ok := r.eng.(adapterEngine); ok && s.level > 1 {
		r.adapters.unloadAll(wctx, a)
	}
	awake <- time.Now()
	tctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	if err := r.eng.Token(tctx); err != nil {
		if tctx.Err() != nil {
			return fmt.Errorf("%w: no token within %s of /wake_up", errWakeTimeout, tokenWait)
		}
		return fmt.Errorf("wake failed: %w", err)
	}
	return nil
}
