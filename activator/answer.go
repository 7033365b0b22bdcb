package activator

import (
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// refuseNow answers with an error and ends the request.
func (p *proxyRequest) refuseNow(res *httpserver.Response, e *openai.Error) {
	p.setCommonFields(res)
	res.Refuse(e.For(p.req.http.req.Path))
	p.finish(e.Status, string(e.Code))
}

// setCommonFields sets the fields every answer carries.
func (p *proxyRequest) setCommonFields(res *httpserver.Response) {
	if cap(res.Fields) == 0 {
		res.Fields = make([]httpserver.Field, 0, 12)
	}
	res.Set("x-request-id", p.req.id)
	if p.req.clientID != "" {
		res.Set("thaw-client-request-id", p.req.clientID)
	}
	now := p.a.o.Now()
	res.Set("openai-processing-ms", strconv.FormatInt(now.Sub(p.req.began).Milliseconds(), 10))
	if p.req.team != "" {
		p.a.o.Limits.Usage(p.req.team, now).SetFields(res)
	}
	if p.wait.queued.Cold {
		if p.wait.resolveColdStart(); p.wait.queued.ColdStart != "" {
			res.Set("thaw-cold-start", p.wait.queued.ColdStart)
		}
	}
	if p.req.fn != nil {
		res.Set("Server-Timing", p.serverTiming(now))
	}
	if p.req.routing != nil {
		res.Set("thaw-route", p.req.routing.header)
	}
	if p.wait.queued.Moved != admission.NotMoved {
		res.Set("thaw-session", "moved; why="+string(p.wait.queued.Moved))
	}
	p.req.cached.SetField(res)
}

// serverTiming is the Server-Timing of the phases known so far.
func (p *proxyRequest) serverTiming(now time.Time) string {
	b := make([]byte, 0, 96)
	var few [10]openai.Span
	for _, s := range append(p.phases(few[:0]), openai.Span{Phase: "total", Took: now.Sub(p.req.began)}) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, s.Phase...), ";dur="...)
		b = strconv.AppendFloat(b, float64(s.Took.Microseconds())/1000, 'f', 3, 64)
	}
	return string(b)
}

// phases appends the known phases of the request's cold start, or the wait for a slot, then
// the whole wait.
func (p *proxyRequest) phases(spans []openai.Span) []openai.Span {
	if !p.wait.queued.Cold {
		spans = append(spans, openai.Span{Phase: string(functions.PhaseQueue), Took: p.wait.took})
	} else if t := p.req.fn.Snapshot().ColdStart; t != nil && t.ID == p.wait.queued.ColdStart {
		for _, phase := range t.Phases {
			if phase.Phase != functions.PhaseFirstToken {
				spans = append(spans, openai.Span{Phase: string(phase.Phase), Took: time.Duration(phase.Duration * float64(time.Second))})
			}
		}
	}
	if p.attempt.firstByteTook > 0 {
		spans = append(spans, openai.Span{Phase: string(functions.PhaseFirstToken), Took: p.attempt.firstByteTook})
	}
	if p.wait.took > 0 {
		spans = append(spans, openai.Span{Phase: "wait", Took: p.wait.took})
	}
	return spans
}
