package replica

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// draining is DRAINING: no new requests are sent, those in flight may finish.
func (r *Replica) draining(c commands) state {
	return func(ctx context.Context) state {
		r.report.enter(functions.Draining)
		rctx, cancel := context.WithCancel(ctx)
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
			case <-r.process.child.Exited:
				r.process.forget(ctx)
				return r.unloaded(c.reason + "; it ended by itself")
			case <-poll.C:
				open = true
				go func() { readings <- readMetrics(rctx, r.eng, pollWait) }()
			case m := <-readings:
				open = false
				r.report.publishMetrics(m)
				if m.idle(r.o.InFlight) {
					return r.terminate(ctx, c.reason)
				}
				poll.Reset(drainEvery)
			case <-limit.C:
				r.abortRequests(rctx, c.reason)
				return r.terminate(ctx, c.reason)
			case <-r.commands.ready:
				if again := r.commands.take(); again.unload {
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
	if r.report.now.InFlight == 0 && (r.o.InFlight == nil || r.o.InFlight() == 0) {
		return
	}
	r.log.Warn("drain deadline reached with requests in flight", "requests", r.report.now.InFlight)
	if r.o.AbortRequests == nil {
		return
	}
	r.o.AbortRequests(r.report.now.Endpoint, reason)
	for end := time.Now().Add(abortWait); time.Now().Before(end); {
		if readMetrics(ctx, r.eng, abortWait).idle(r.o.InFlight) || !backoff.Sleep(ctx, abortWait/10) {
			return
		}
	}
}

// idle reports whether the owner, if it counts them, and the engine have no requests; at
// least one of the counts must be known.
func (r reading) idle(ownInFlight func() int) bool {
	if ownInFlight != nil && ownInFlight() > 0 || r.Running+r.Waiting > 0 {
		return false
	}
	return ownInFlight != nil || r.err == nil
}

// terminate ends the process in DRAINING, without a wait for requests.
func (r *Replica) terminate(ctx context.Context, reason string) state {
	r.report.enter(functions.Draining)
	r.process.terminate(ctx)
	return r.unloaded(reason)
}
