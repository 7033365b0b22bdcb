package replica

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// draining is DRAINING: no new requests are sent, those in flight may finish.
func (r *Replica) draining(c commands) state {
	return func(ctx context.Context) state {
		r.enter(functions.Draining)
		reason := c.reason
		rctx, cancel := context.WithCancel(ctx)
		defer cancel()
		end := time.Now().Add(c.drain)
		limit := time.NewTimer(c.drain)
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

// abortRequests fails the requests in flight and waits until the engine has dropped
// them: a vLLM with an open stream does not react to SIGTERM.
func (r *Replica) abortRequests(ctx context.Context, reason string) {
	if r.now.InFlight == 0 && (r.o.InFlight == nil || r.o.InFlight() == 0) {
		return
	}
	r.log.Warn("drain deadline reached with requests in flight", "requests", r.now.InFlight)
	if r.o.AbortRequests == nil {
		return
	}
	r.o.AbortRequests(reason)
	for end := time.Now().Add(abortWait); time.Now().Before(end); {
		if r.idle(r.readMetrics(ctx, abortWait)) || !backoff.Sleep(ctx, abortWait/10) {
			return
		}
	}
}

// idle reports whether the owner and the engine count no requests; at least one of
// the counts must be known.
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

// terminate sends SIGTERM to the group, and SIGKILL after termGrace.
func (r *Replica) terminate(ctx context.Context) {
	if r.child == nil {
		return
	}
	r.signal(ctx, syscall.SIGTERM)
	if _, ok := r.waitExit(termGrace); !ok {
		r.kill(ctx)
		return
	}
	r.forgetProcess(ctx)
}

// kill sends SIGKILL to the group and returns its exit, if it is reported in time.
func (r *Replica) kill(ctx context.Context) supervisor.Exit {
	if r.child == nil {
		return supervisor.Exit{}
	}
	r.signal(ctx, syscall.SIGKILL)
	x, ok := r.waitExit(killWait)
	if !ok {
		r.log.Error("a killed engine does not exit", "pid", r.child.PID)
	}
	r.forgetProcess(ctx)
	return x
}

func (r *Replica) waitExit(within time.Duration) (supervisor.Exit, bool) {
	select {
	case x := <-r.child.Exited:
		return x, true
	case <-time.After(within):
		return supervisor.Exit{}, false
	}
}

// signal sends a signal even if ctx has ended.
func (r *Replica) signal(ctx context.Context, sig syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.o.Spawner.Signal(ctx, r.o.ID, sig); err != nil {
		r.log.Error("signal", "signal", sig, "error", err)
	}
}

// forgetProcess drops the process, which has ended or does not react to SIGKILL.
func (r *Replica) forgetProcess(ctx context.Context) {
	r.child = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.o.Spawner.Forget(ctx, r.o.ID); err != nil && !errors.Is(err, supervisor.ErrLost) {
		r.log.Debug("forget", "error", err)
	}
}
