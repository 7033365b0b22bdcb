package activator

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/metrics"
)

// finish releases what the request holds and accounts for it. It is the one end of
// every request; a second call does nothing. code is the status, or that of the error
// a stream broke with, or 499 for a client that left.
func (p *proxyRequest) finish(code int) {
	if p.finished {
		return
	}
	p.finished = true
	a := p.a
	p.stopEngine()
	if a.o.GPUHourPrice > 0 && p.req.fn != nil {
		p.attempt.together = p.req.fn.Data.queue.InFlight(p.queued.ReplicaID())
	}
	p.leave()
	if p.req.counted {
		a.o.KeyRequests.Add(p.req.identity.KeyID, -1) // gives back: no error
	}
	now := a.o.Now()
	took := now.Sub(p.req.began)
	if p.suspected && p.attempt.firstByteTook > 0 && code < 499 {
		a.suspects.Acquit(p.req.fingerprint())
	}
	charge := p.remote.End(p.tokens.Usage, code, now)
	p.req.cached.End(code, p.tokens.Usage)
	p.tokens.Estimate(p.req.env.PromptBytes)
	used := p.tokens.Usage
	if charge.Estimated {
		used, p.tokens.Usage.Known = charge.Usage, false // also where the claim of a Remote cannot be true
	}
	p.req.lease.End(int(used.Prompt+used.Completion), now)
	p.countEnd(code, now, took)
	ctx := context.Background() // the line is written even if the request was cancelled
	if !a.o.Log.Enabled(ctx, slog.LevelInfo) || !a.refusals.LogsEnd(p.req.team, code, now, a.o.Log) {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("id", p.req.id), slog.Int("code", code), slog.String("route", p.req.route()))
	switch {
	case p.req.composition != nil:
		attrs = append(attrs, slog.String("model", p.req.composition.FullName().String()),
			slog.String("team", p.req.team), slog.Bool("stream", p.req.stream))
		attrs = p.composed.Attrs(attrs)
	case p.req.fn != nil:
		attrs = append(attrs, slog.String("model", a.metricsOf(p.req.fn).FullName),
			slog.String("team", p.req.team), slog.Bool("stream", p.req.stream))
		if p.req.fn.Snapshot().ServedModelName != "" {
			attrs = append(attrs, slog.String("revision", p.req.fn.Name.Name))
		}
	}
	if t := p.req.routing; t != nil {
		attrs = t.attrs(attrs)
	}
	attrs = p.req.cached.Attrs(attrs)
	if p.req.caller.Covered() {
		attrs = append(attrs, slog.String("parent", p.req.caller.Parent))
	}
	if p.reason != "" {
		attrs = append(attrs, slog.String("error", p.reason))
	}
	if p.joined != "" {
		attrs = append(attrs, slog.String("joined", p.joined))
	}
	if p.wait.took > 0 {
		attrs = append(attrs, slog.Duration("waited", p.wait.took))
	}
	if p.queued.Cold {
		attrs = append(attrs, slog.String("cold_start", p.queued.ColdStart))
	}
	if p.queued.Moved != admission.NotMoved {
		attrs = append(attrs, slog.String("session_moved", string(p.queued.Moved)))
	}
	if p.attempt.firstByteTook > 0 {
		attrs = append(attrs, slog.Duration("first_token", p.attempt.firstByteTook))
	}
	attrs = append(attrs, slog.Duration("took", took))
	attrs = p.tokens.AppendAttrs(attrs)
	attrs = charge.Attrs(attrs)
	line := slog.NewRecord(now, slog.LevelInfo, "request", 0) // without the source position, which is always this
	line.AddAttrs(attrs...)
	a.o.Log.Handler().Handle(ctx, line)
}

// countEnd counts the request, which ended with code after the time that it took.
func (p *proxyRequest) countEnd(code int, now time.Time, took time.Duration) {
	a := p.a
	if p.req.routing != nil {
		a.decisions.Finish(p.req.routing.logged, code)
	}
	if p.req.composition != nil {
		p.countComposition(code, took)
	} else if p.req.fn == nil {
		a.countRefused(cmp.Or(p.req.team, metrics.Other), p.req.route(), code)
	} else {
		if code == 200 && !p.attempt.sentAt.IsZero() {
			p.req.fn.Data.pace.Observe(p.req.stream, p.attempt.firstByteTook, now.Sub(p.attempt.sentAt),
				p.tokens.Usage.Completion, p.attempt.together)
		}
		s := a.metricsOf(p.req.fn)
		s.CountEnd(p.req.endpoint.Path, code, p.queued.Cold, took)
		if p.tokens.Usage.Known {
			s.Prompt(float64(p.tokens.Usage.Prompt))
			s.Completion(float64(p.tokens.Usage.Completion))
			if p.tokens.FirstTook > 0 {
				s.ObserveTokenTime(p.queued.Cold, p.tokens.Usage.Completion, took-p.tokens.FirstTook)
			}
		}
	}
}
