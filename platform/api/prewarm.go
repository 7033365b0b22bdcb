package api

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Ahead takes hints: word that a model will be asked for.
type Ahead interface {
	// Prewarm holds until then, or says why not: functions.ErrNotFound, ErrPrewarmTier where no
	// node brings bytes to that tier, ErrTooManyPrewarms, *PrewarmBudgetError.
	Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error)
	Prewarms() []functions.Prewarm
	// PrewarmLeft is the GPU time that a team may still have started ahead.
	PrewarmLeft(team string) time.Duration
}

type PrewarmRequest struct {
	Model string    `json:"model"`          // NAME, in the key's own team, or TEAM/NAME
	Until time.Time `json:"until,omitzero"` // the lease; ten minutes from now where none is given
	Tier  string    `json:"tier,omitempty"` // gpu (READY, the default), memory or nvme (its bytes there)
}

type Prewarmed struct {
	functions.Prewarm
	Will string  `json:"will"`                // what is done now
	Left float64 `json:"budget_left_seconds"` // GPU time of its team for further prewarms
}

type Prewarms struct {
	Items []functions.Prewarm `json:"items"`
	Left  *float64            `json:"budget_left_seconds,omitempty"` // of the key's team
}

const (
	usualPrewarm = 10 * time.Minute
	maxPrewarm   = 24 * time.Hour
)

// tiers are the values of a request's tier, and what is done for each.
var tiers = []struct{ name, will string }{
	{"gpu", "a replica is started where no queued request needs the memory, and kept until then"},
	{"memory", "its bytes are brought to a node's disk and read into its memory"},
	{"nvme", "its bytes are brought to a node's disk"},
}

// prewarmHandlers answers for the hints.
type prewarmHandlers struct {
	ahead     Ahead // may be nil
	functions *functionHandlers
}

func (p *prewarmHandlers) prewarm(x *exchange, w PrewarmRequest, res *httpserver.Response) *openai.Error {
	name, bad := functions.ParseName(w.Model, x.ownTeam())
	if bad != nil {
		return openai.New(openai.InvalidValue, "model: "+bad.Error()).With("model")
	}
	m, err := p.functions.find(x, name)
	if err != nil {
		return err.With("model")
	}
	w.Tier = cmp.Or(w.Tier, tiers[0].name)
	tier := slices.IndexFunc(tiers, func(t struct{ name, will string }) bool { return t.name == w.Tier })
	if tier < 0 {
		return openai.New(openai.InvalidValue, "tier is gpu, memory or nvme.").With("tier")
	}
	now := time.Now()
	switch {
	case w.Until.IsZero():
		w.Until = now.Add(usualPrewarm)
	case !w.Until.After(now):
		return openai.New(openai.InvalidValue, "until is in the past.").With("until")
	case w.Until.Sub(now) > maxPrewarm:
		return openai.New(openai.InvalidValue, "A prewarm holds for at most a day; scale.min keeps a replica for good.").With("until")
	}
	if p.ahead == nil {
		return openai.New(openai.UnknownEndpoint, "This platform starts nothing ahead.")
	}
	warm, no := p.ahead.Prewarm(m.FullName(), w.Until, w.Tier, cmp.Or(x.id.KeyID, "admin"))
	if budgetErr, ok := errors.AsType[*functions.PrewarmBudgetError](no); ok {
		text := budgetErr.Error()
		text = strings.ToUpper(text[:1]) + text[1:]
		if budgetErr.In > 0 {
			return openai.New(openai.PrewarmBudgetExceeded, text+".").With("until").After(budgetErr.In)
		}
		return openai.New(openai.PrewarmBudgetExceeded, text+"; ask for less.").With("until").Final()
	}
	switch {
	case errors.Is(no, functions.ErrNotFound):
		return notFound("The function " + name.String())
	case errors.Is(no, functions.ErrPrewarmTier):
		return openai.New(openai.InvalidValue, "No node here brings bytes to the tier "+w.Tier+".").With("tier")
	case errors.Is(no, functions.ErrTooManyPrewarms):
		return openai.New(openai.RateLimitExceeded, "Too many prewarms hold.").After(time.Minute)
	case no != nil:
		return openai.New(openai.InternalError, "The prewarm was not taken: "+no.Error())
	}
	out := Prewarmed{Prewarm: warm, Will: tiers[tier].will, Left: p.ahead.PrewarmLeft(name.Team).Seconds()}
	if warm.State == "ready" {
		out.Will = "it is ready, and kept until then"
	}
	return writeJSON(res, out)
}

func (p *prewarmHandlers) list(x *exchange, res *httpserver.Response) *openai.Error {
	out := Prewarms{Items: []functions.Prewarm{}}
	if p.ahead != nil {
		out.Items = readable(x, p.ahead.Prewarms(), func(p functions.Prewarm) string { return teamOf(p.Function) })
		if team := x.team(); team != "" {
			out.Left = new(p.ahead.PrewarmLeft(team).Seconds())
		}
	}
	return writeJSON(res, out)
}
