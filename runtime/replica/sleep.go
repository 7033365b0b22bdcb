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

// sleeping is SLEEPING: the engine finishes requests in flight and falls asleep
// (SleepLevel is set then), until it is woken or ended.
func (r *Replica) sleeping(n sleepRequest) state {
	return func(ctx context.Context) state {
		s, ok := r.eng.(sleeper)
		if !ok {
			r.log.Warn("this engine cannot sleep", "why", n.why)
			return r.ready
		}
		r.enter(functions.Sleeping)
		sctx, cancel := context.WithCancel(ctx)
		asleep := make(chan error, 1)
		falling := true
		go func() {
			if n.asleep {
				asleep <- nil
				return
			}
			asleep <- r.fallAsleep(sctx, s, n.level)
		}()
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
			case x := <-r.child.Exited:
				return r.exited(ctx, x, "sleeping")
			case err := <-asleep:
				falling = false
				if next, done := r.fellAsleep(ctx, n, err); done {
					return next
				}
				if wakeReason != "" {
					return r.waking(s, n.level, wakeReason)
				}
			case <-look.C:
				if !falling && !reading {
					reading = true
					go func() { readings <- r.readMetrics(sctx, pollWait) }()
				}
			case m := <-readings:
				reading = false
				// A request that was sent before the engine slept hangs until it
				// wakes.
				if m.err == nil && m.Running+m.Waiting > 0 {
					return r.waking(s, n.level, "a request waits in the engine")
				}
			case <-r.commandReady:
				c := r.takeCommands()
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
					return r.waking(s, n.level, c.sleep.why)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// fellAsleep records the sleep, or ends an engine that failed to fall asleep; over
// reports that.
func (r *Replica) fellAsleep(ctx context.Context, n sleepRequest, err error) (next state, done bool) {
	switch {
	case err == nil:
		r.now.SleepLevel, r.now.Tier = n.level, functions.TierSleeping
		r.now.InFlight, r.now.QueueLength = 0, 0
		r.log.Info("asleep", "level", n.level, "why", n.why)
		r.notify()
		return nil, false
	case ctx.Err() != nil:
		return nil, true
	}
	if x, ok := r.waitExit(exitAfterError); ok {
		return r.exited(ctx, x, "falling asleep"), true
	}
	r.kill(ctx)
	return r.failed(fmt.Sprintf("%s does not fall asleep: %v", r.o.Spec.Engine, err)), true
}

// fallAsleep waits for requests in flight, for at most the drain deadline, aborts the
// rest and sends the engine to sleep.
func (r *Replica) fallAsleep(ctx context.Context, s sleeper, level int) error {
	drain := r.o.Spec.Deadlines.Drain.Std()
	dctx, cancel := context.WithTimeout(ctx, drain+sleepWait)
	defer cancel()
	end := time.Now().Add(drain)
	for { // the engine does not count requests that are on the way to it
		m := r.readMetrics(dctx, pollWait)
		if r.idle(m) || !time.Now().Before(end) {
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
	err := s.Sleep(dctx, level, mode)
	if err != nil && dctx.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer to /sleep within %s", drain+sleepWait)
	}
	return err
}

var errWakeTimeout = errors.New("wake hung")

// waking is LOADING_TO_GPU of an engine that slept.
func (r *Replica) waking(s sleeper, level int, reason string) state {
	return func(ctx context.Context) state {
		began := time.Now()
		// A start of its own: phases count from here.
		r.o.Began, r.phases, r.adopt = began, nil, nil
		r.now.SleepLevel = 0
		r.enter(functions.Loading)
		r.log.Info("waking", "why", reason)
		wctx, cancel := context.WithCancel(ctx)
		awake, token := make(chan time.Time, 1), make(chan error, 1)
		done := false
		go func() { token <- r.wakeEngine(wctx, s, level, awake) }()
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
				r.addPhase(functions.PhaseLoad, began, at)
				loaded = at
			case err := <-token:
				done = true
				if ctx.Err() != nil {
					return nil
				}
				if err == nil {
					r.addPhase(functions.PhaseWarmup, loaded, time.Now())
					return r.ready
				}
				if x, ok := r.waitExit(exitAfterError); ok {
					return r.exited(ctx, x, "waking")
				}
				r.kill(ctx)
				return r.failed(fmt.Sprintf("%s: %v", r.o.Spec.Engine, err))
			case x := <-r.child.Exited:
				return r.exited(ctx, x, "waking")
			case <-r.commandReady:
				if c := r.takeCommands(); c.unload {
					r.enter(functions.Draining)
					r.terminate(ctx)
					return r.unloaded(c.reason)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func (r *Replica) wakeEngine(ctx context.Context, s sleeper, level int, awake chan<- time.Time) error {
	limit := wakeWait
	if level > 1 { // the weights are read again
		limit = max(limit, r.o.Spec.Deadlines.Start.Std())
	}
	for end := time.Now().Add(r.o.Spec.Deadlines.Start.Std()); ; { // another engine may be freeing it
		problem := r.missingGPUMemory()
		if problem == "" {
			break
		}
		if !time.Now().Before(end) {
			return errors.New(r.insufficientGPUMemory(problem))
		}
		if !backoff.Sleep(ctx, freeEvery) {
			return context.Cause(ctx)
		}
	}
	wctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.Wake(wctx, level); err != nil {
		if wctx.Err() != nil {
			return fmt.Errorf("%w: no answer to /wake_up within %s", errWakeTimeout, limit)
		}
		return fmt.Errorf("wake failed: %w", err)
	}
	if a, ok := r.eng.(adapterEngine); ok && level > 1 {
		// They were dropped with the weights and are loaded again on demand.
		for _, name := range r.adapters.names() {
			if err := a.UnloadAdapter(wctx, name); err != nil {
				r.log.Warn("adapter not unloaded after a deep sleep", "adapter", name, "error", err)
			}
		}
		r.adapters.unloadedAll()
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
