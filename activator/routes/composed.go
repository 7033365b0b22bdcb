package routes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// chatPath is the endpoint that Compositions answer.
const chatPath = "/v1/chat/completions"

// composed is the present state of a target that is a Composition, made of those of its
// parts. It is ready when its coordinator is and as many members as must answer. Its expected
// time is the measured one of its answers, behind the start of the slowest of these parts; its
// expected cost is the measured one.
func (r *Route) composed(q *Request, c functions.RouteCandidate, f Function) (_ functions.RouteCandidate, why string, e *openai.Error) {
	c.Kind, c.State = functions.KindComposition, functions.Ready.Word()
	switch {
	case q.path != chatPath:
		return c, "a Composition answers " + chatPath + " alone", openai.New(openai.UnknownEndpoint, "")
	case q.Features.Tools || q.Features.Images || q.answers > 1:
		return c, "a Composition takes no tools, no images and no n above 1", openai.New(openai.UnsupportedParameter, "")
	case q.failed[c.Name] != "":
		return c, "it failed this request: " + q.failed[c.Name], openai.New(openai.EngineCrashed, "")
	case q.depth >= functions.MaxCompositionDepth:
		return c, "its members lead too deep", openai.New(openai.CompositionCycle, "")
	case q.Sent:
		return c, "a request that another target failed is not given to a Composition", openai.New(openai.EngineCrashed, "")
	}
	spec, refused := &f.Composition.Spec, q.refused
	q.depth++
	defer func() { q.refused, q.depth = refused, q.depth-1 }()
	need := 1
	if spec.Pattern == functions.PatternEnsemble || spec.Pattern == functions.PatternDebate {
		need = spec.Answers()
	}
	var members []functions.RouteCandidate
	needed, missing := []functions.RouteCandidate(nil), ""
	for _, part := range spec.Parts() {
		target := part.Target
		if team := f.Composition.Metadata.Namespace; team != q.Team && !strings.Contains(target, "/") {
			target = team + "/" + target
		}
		m := r.candidate(q, target)
		switch {
		case m.WhyNot != "":
			e = q.refused[len(q.refused)-1]
			if missing += fmt.Sprintf("; `%s`: %s", part.Target, m.WhyNot); part.Path == "spec.coordinator" {
				return c, "its coordinator `" + part.Target + "` cannot be asked: " + m.WhyNot, e
			}
		case part.Path == "spec.coordinator":
			needed = append(needed, m)
		default:
			members = append(members, m)
		}
	}
	if len(members) < need {
		return c, fmt.Sprintf("%d of its members must answer, and %d may be asked%s", need, len(members), missing), e
	}
	slices.SortStableFunc(members, func(a, b functions.RouteCandidate) int { return int(startMS(a) - startMS(b)) })
	start := 0.0
	for _, m := range append(needed, members[:need]...) {
		if start = max(start, startMS(m)); m.State != functions.Ready.Word() {
			c.State = functions.Unloaded.Word()
		}
	}
	c.ExpectedMS, c.Cost = -1, -1
	if first := f.Pace.firstToken(); start < unknownMS && (first >= 0 || start > 0) {
		c.ExpectedMS = start + float64(max(0, first).Microseconds())/1000
	}
	if cost := f.Pace.cost.value(); cost > 0 {
		c.Cost = cost
	}
	return c, "", nil
}

// unknownMS is later than any forecast.
const unknownMS = 1e9

// startMS is when a part can be asked, in milliseconds from now.
func startMS(c functions.RouteCandidate) float64 {
	switch {
	case c.State == functions.Ready.Word():
		return 0
	case c.ExpectedMS < 0:
		return unknownMS
	}
	return c.ExpectedMS
}
