package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// shortName is a function as its own team's requests say it.
func shortName(name string) string {
	if n, err := functions.ParseName(name, ""); err == nil && n.Team == functions.DefaultTeam {
		return n.Short()
	}
	return name
}

func stateWithPercent(f api.Function) string {
	s := f.State.Word()
	if f.Percent != nil {
		s += " " + strconv.Itoa(*f.Percent) + "%"
	}
	return s
}

func (c *command) functionKind() Kind[api.Function] {
	return Kind[api.Function]{"Function", "/api/v1/functions", []Column[api.Function]{
		{"NAME", false, func(f api.Function) string { return shortName(f.Name) }},
		{"STATE", false, stateWithPercent},
		{"ENGINE", false, func(f api.Function) string { return string(f.Engine) }},
		{"REPLICAS", false, func(f api.Function) string { return strconv.Itoa(f.Replicas) }},
		{"ACTIVE", false, func(f api.Function) string { return strconv.Itoa(f.Active) }},
		{"QUEUED", false, func(f api.Function) string { return strconv.Itoa(f.Queued) }},
		{"COLD START", false, func(f api.Function) string { return Seconds(f.Expected) }},
		{"SOURCE", false, func(f api.Function) string { return f.Source }},
		{"FROM", true, func(f api.Function) string { return f.Origin }},
		{"PROBLEM", true, func(f api.Function) string { return f.Problem }},
	}, func(f api.Function) string { return f.Name }}
}

func (c *command) replicaKind() Kind[functions.Replica] {
	return Kind[functions.Replica]{"Replica", "/api/v1/replicas", []Column[functions.Replica]{
		{"NAME", false, func(r functions.Replica) string { return shortName(r.Function) }},
		{"STATE", false, func(r functions.Replica) string {
			s := r.State.Word()
			if r.Percent != nil {
				s += " " + strconv.Itoa(*r.Percent) + "%"
			}
			return s
		}},
		{"TIER", false, func(r functions.Replica) string { return string(r.Tier) }},
		{"NODE", false, func(r functions.Replica) string { return r.Node }},
		{"GPU", false, func(r functions.Replica) string { return JoinInts(r.GPUs) }},
		{"SIZE", false, func(r functions.Replica) string {
			if b := max(r.Total, r.Bytes); b > 0 {
				return b.Human()
			}
			return ""
		}},
		{"ACTIVE", false, func(r functions.Replica) string { return strconv.Itoa(r.InFlight) }},
		{"FOR", false, func(r functions.Replica) string { return c.Since(r.Since) }},
		{"ID", true, func(r functions.Replica) string { return r.ID }},
		{"ENDPOINT", true, func(r functions.Replica) string { return r.Endpoint }},
		{"START", true, func(r functions.Replica) string { return r.Start }},
		{"ADAPTERS", true, func(r functions.Replica) string { return strings.Join(r.Adapters, ",") }},
		{"ERROR", true, func(r functions.Replica) string { return r.Error }},
	}, func(r functions.Replica) string { return r.ID }}
}

func (c *command) nodeKind() Kind[api.Node] {
	return Kind[api.Node]{"Node", "/api/v1/nodes", []Column[api.Node]{
		{"NAME", false, func(n api.Node) string { return n.ID }},
		{"STATE", false, func(n api.Node) string {
			if n.Lost {
				return "lost"
			}
			return string(n.State)
		}},
		{"GPUS", false, func(n api.Node) string { return strconv.Itoa(len(n.GPUs)) }},
		{"MEMORY", false, func(n api.Node) string { return n.Memory.Used.Human() + " of " + n.Memory.Total.Human() }},
		{"STORE", false, func(n api.Node) string { return n.Store.Used.Human() + " of " + n.Store.Bytes.Human() }},
		{"REPLICAS", false, func(n api.Node) string { return strconv.Itoa(n.Replicas) }},
		{"CACHED", false, func(n api.Node) string { return cachedModels(n.Near, c.output == "wide") }},
		{"SEEN", false, func(n api.Node) string { return c.Since(n.Seen) + " ago" }},
		{"WARM", true, func(n api.Node) string { return warmParents(n.Warm) }},
		{"VERSION", true, func(n api.Node) string { return n.Version }},
		{"URL", true, func(n api.Node) string { return n.URL }},
	}, func(n api.Node) string { return n.ID }}
}

// cachedModels names the models whose weights are on a node, the nearest first; not all of
// many, unless all are asked for.
func cachedModels(near []api.Near, all bool) string {
	const most = 3
	var words []string
	for _, where := range []string{"memory", "disk"} {
		for _, n := range near {
			if n.Where() == where {
				words = append(words, shortName(n.Model)+" ("+where+")")
			}
		}
	}
	if more := len(words) - most; more > 0 && !all {
		words = append(words[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(words, ", ")
}

// warmParents is a word on each warm interpreter of a node.
func warmParents(parents []functions.WarmParent) string {
	var words []string
	for _, p := range parents {
		w := p.Engine + " " + p.State
		if p.State == "ready" {
			w = fmt.Sprintf("%s %s (%s, %d forks)", p.Engine, p.Version, p.Memory.Human(), p.Forks)
		}
		words = append(words, w)
	}
	return strings.Join(words, ", ")
}

func limitLeft(n *int, limit int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d", *n, limit)
}

// gpuTime is what a team has used of today's GPU-seconds.
func gpuTime(t api.Team) string {
	used := strconv.FormatFloat(t.Today, 'f', 0, 64) + " s"
	if t.Left == nil {
		return used
	}
	used += fmt.Sprintf(" of %d", t.Limits.GPUSecondsPerDay)
	if t.OverBudget {
		used += ", used up"
	}
	return used
}

// gpuLeft is what is left of them.
func gpuLeft(t api.Team) string {
	if t.Left == nil {
		return ""
	}
	return fmt.Sprintf(", %.0f left", *t.Left)
}

func (c *command) teamKind() Kind[api.Team] {
	return Kind[api.Team]{"TeamStatus", "/api/v1/teams", []Column[api.Team]{
		{"NAME", false, func(t api.Team) string { return t.Name }},
		{"FUNCTIONS", false, func(t api.Team) string { return strconv.Itoa(t.Functions) }},
		{"ACTIVE", false, func(t api.Team) string { return strconv.Itoa(t.Active) }},
		{"GPUS", false, func(t api.Team) string {
			if t.GPUs == (functions.TeamGPUs{}) {
				return ""
			}
			return fmt.Sprintf("%d to %d", t.GPUs.Guaranteed, t.GPUs.Max)
		}},
		{"HELD", false, func(t api.Team) string { return strconv.Itoa(t.TeamUse.GPUs) }},
		{"GPU TIME TODAY", false, func(t api.Team) string { return gpuTime(t) }},
		{"REQUESTS LEFT", false, func(t api.Team) string { return limitLeft(t.Requests, t.Limits.RequestsPerMinute) }},
		{"TOKENS LEFT", false, func(t api.Team) string { return limitLeft(t.Tokens, t.Limits.TokensPerMinute) }},
		{"EVICTED OTHERS", true, func(t api.Team) string { return strconv.FormatUint(t.Inflicted, 10) }},
		{"EVICTED BY OTHERS", true, func(t api.Team) string { return strconv.FormatUint(t.Suffered, 10) }},
		{"COLD STARTS LEFT", true, func(t api.Team) string { return limitLeft(t.ColdStarts, t.Limits.ColdStartsPerHour) }},
	}, func(t api.Team) string { return t.Name }}
}

func (c *command) coldStartKind() Kind[api.ColdStart] {
	return Kind[api.ColdStart]{"ColdStart", "/api/v1/coldstarts", []Column[api.ColdStart]{
		{"ID", false, func(t api.ColdStart) string { return t.ID }},
		{"NAME", false, func(t api.ColdStart) string { return shortName(t.Function) }},
		{"STATE", false, func(t api.ColdStart) string { return t.State.Word() }},
		{"TOOK", false, func(t api.ColdStart) string { return Seconds(&t.Total) }},
		{"LONGEST", false, func(t api.ColdStart) string {
			var most functions.Span
			for _, p := range t.Phases {
				if p.Duration > most.Duration {
					most = p
				}
			}
			if most.Phase == "" {
				return ""
			}
			return string(most.Phase) + " " + Seconds(&most.Duration)
		}},
		{"NODE", false, func(t api.ColdStart) string { return t.Node }},
		{"BEGAN", false, func(t api.ColdStart) string { return c.Since(t.Began) + " ago" }},
		{"ERROR", true, func(t api.ColdStart) string { return t.Error }},
	}, func(t api.ColdStart) string { return t.ID }}
}

func (c *command) eventKind() Kind[functions.Event] {
	return Kind[functions.Event]{"Event", "/api/v1/events", []Column[functions.Event]{
		{"AGO", false, func(e functions.Event) string { return c.Since(e.At) }},
		{"WHAT", false, func(e functions.Event) string { return e.Kind }},
		{"NAME", false, func(e functions.Event) string { return shortName(e.Function) }},
		{"NODE", false, func(e functions.Event) string { return e.Node }},
		{"WHY", false, func(e functions.Event) string { return e.Reason }},
		{"FOR", false, func(e functions.Event) string { return shortName(e.For) }},
		{"MESSAGE", false, func(e functions.Event) string { return e.Message }},
		{"REPLICA", true, func(e functions.Event) string { return e.Replica }},
	}, func(e functions.Event) string { return strconv.FormatUint(e.Seq, 10) }}
}

func (c *command) keyKind() Kind[auth.Key] {
	return Kind[auth.Key]{"Key", "", []Column[auth.Key]{
		{"ID", false, func(k auth.Key) string { return k.ID }},
		{"TEAM", false, func(k auth.Key) string { return k.Team }},
		{"NAME", false, func(k auth.Key) string { return k.Name }},
		{"ADMIN", false, func(k auth.Key) string {
			if k.Admin {
				return "yes"
			}
			return "no"
		}},
		{"MADE", false, func(k auth.Key) string { return c.Since(k.Created) + " ago" }},
	}, func(k auth.Key) string { return k.ID }}
}
