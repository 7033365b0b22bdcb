package activator

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/metrics"
)

// finish releases what the request holds and accounts for it. It is the one end of
// every request; a second call does nothing. code is the status, or that of the error
// a stream broke with, or 499 for a client that left. reason is the error's code, "" none.
func (p *proxyRequest) finish(code int, reason string) {
	if p.finished {
		return
	}
	p.finished = true
	a, r := p.a, &p.req
	reason = cmp.Or(p.reason, reason)
	p.attempt.stop()
	together := 0 // requests at the replica at the end of this one, where costs are counted by time
	if a.o.GPUHourPrice > 0 && r.fn != nil {
		together = r.fn.Data.queue.InFlight(p.wait.queued.ReplicaID())
	}
	p.leave()
	if r.counted {
		a.o.KeyRequests.Add(r.identity.KeyID, -1) // gives back: no error
	}
	now := a.o.Now()
	took := now.Sub(r.began)
	if p.suspicion.suspected && p.attempt.firstByteTook > 0 && code < 499 {
		a.suspects.Acquit(r.fingerprint())
	}
	charge := p.attempt.remote.End(p.attempt.tokens.Usage, code, now)
	r.cached.End(code, p.attempt.tokens.Usage)
	p.attempt.tokens.Estimate(r.env.PromptBytes)
	used := p.attempt.tokens.Usage
	if charge.Estimated {
		used, p.attempt.tokens.Usage.Known = charge.Usage, false // also where the claim of a Remote cannot be true
	}
	r.lease.End(int(used.Prompt+used.Completion), now)
	p.countEnd(code, now, took, together)
	ctx := context.Background() // the line is written even if the request was cancelled
	if !a.o.Log.Enabled(ctx, slog.LevelInfo) || !a.refusals.LogsEnd(r.team, code, now, a.o.Log) {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("id", r.id), slog.Int("code", code), slog.String("route", r.endpoint.Path))
	switch {
	case r.composition != nil:
		attrs = append(attrs, slog.String("model", r.composition.FullName().String()), slog.String("team", r.team), slog.Bool("stream", r.stream))
		attrs = p.composed.Attrs(attrs)
	case r.fn != nil:
		attrs = append(attrs, slog.String("model", a.metricsOf(r.fn).FullName), slog.String("team", r.team), slog.Bool("stream", r.stream))
		attrs = appendIf(attrs, r.fn.Snapshot().ServedModelName != "", slog.String("revision", r.fn.Name.Name))
	}
	if t := r.routing; t != nil {
		attrs = t.attrs(attrs)
	}
	attrs = r.cached.Attrs(attrs)
	if r.caller.Covered() {
		attrs = append(attrs, slog.String("parent", r.caller.Parent))
	}
	attrs = appendIf(attrs, reason != "", slog.String("error", reason))
	attrs = appendIf(attrs, p.joined != "", slog.String("joined", p.joined))
	attrs = appendIf(attrs, p.wait.took > 0, slog.Duration("waited", p.wait.took))
	attrs = appendIf(attrs, p.wait.queued.Cold, slog.String("cold_start", p.wait.queued.ColdStart))
	attrs = appendIf(attrs, p.wait.queued.Moved != admission.NotMoved, slog.String("session_moved", string(p.wait.queued.Moved)))
	attrs = appendIf(attrs, p.attempt.firstByteTook > 0, slog.Duration("first_token", p.attempt.firstByteTook))
	attrs = append(attrs, slog.Duration("took", took))
	attrs = p.attempt.tokens.AppendAttrs(attrs)
	attrs = charge.Attrs(attrs)
	line := slog.NewRecord(now, slog.LevelInfo, "request", 0) // without the source position, which is always this
	line.AddAttrs(attrs...)
	a.o.Log.Handler().Handle(ctx, line)
}

// appendIf appends a field of the log where it applies.
func appendIf(attrs []slog.Attr, applies bool, attr slog.Attr) []slog.Attr {
	if applies {
		attrs = append(attrs, attr)
	}
	return attrs
}

// countEnd counts the request, which ended with code after the time that it took.
func (p *proxyRequest) countEnd(code int, now time.Time, took time.Duration, together int) {
	a := p.a
	if p.req.routing != nil {
		a.decisions.Finish(p.req.routing.logged, code)
	}
	if p.req.composition != nil {
		p.countComposition(code, took)
	} else if p.req.fn == nil { // it never reached a function
		a.o.Metrics.Series("thaw_requests_total", metrics.Other, cmp.Or(p.req.team, metrics.Other), p.req.endpoint.Path,
			strconv.Itoa(code), "false")(1)
	} else {
		if code == 200 && !p.attempt.sentAt.IsZero() {
			p.req.fn.Data.pace.Observe(p.req.stream, p.attempt.firstByteTook, now.Sub(p.attempt.sentAt),
				p.attempt.tokens.Usage.Completion, together)
		}
		s := a.metricsOf(p.req.fn)
		s.CountEnd(p.req.endpoint.Path, code, p.wait.queued.Cold, took)
		if p.attempt.tokens.Usage.Known {
			s.Prompt(float64(p.attempt.tokens.Usage.Prompt))
			s.Completion(float64(p.attempt.tokens.Usage.Completion))
			if p.attempt.tokens.FirstTook > 0 {
				s.ObserveTokenTime(p.wait.queued.Cold, p.attempt.tokens.Usage.Completion, took-p.attempt.tokens.FirstTook)
			}
		}
	}
}
