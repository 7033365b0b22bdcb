package tables

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// ShortName returns NAME for functions of the default team, else TEAM/NAME.
func ShortName(name string) string {
	if n, err := functions.ParseName(name, ""); err == nil && n.Team == functions.DefaultTeam {
		return n.Short()
	}
	return name
}

// StateWithPercent is the state of a function, with its progress while it starts.
func StateWithPercent(f api.Function) string {
	if f.Blocked != "" {
		return "blocked"
	}
	s := f.State.Word()
	if f.Percent != nil {
		s += " " + strconv.Itoa(*f.Percent) + "%"
	}
	return s
}

func Functions() kit.Kind[api.Function] {
	return kit.Kind[api.Function]{Word: "Function", Path: "/api/v1/functions", Columns: []kit.Column[api.Function]{
		kit.Col("NAME", func(f api.Function) string { return ShortName(f.Name) }),
		kit.Col("STATE", StateWithPercent),
		kit.Col("ENGINE", func(f api.Function) string { return cmp.Or(string(f.Engine), strings.ToLower(f.Kind)) }),
		kit.Col("REPLICAS", func(f api.Function) string { return strconv.Itoa(f.Replicas) }),
		kit.Col("ACTIVE", func(f api.Function) string { return strconv.Itoa(f.Active) }),
		kit.Col("QUEUED", func(f api.Function) string { return strconv.Itoa(f.Queued) }),
		kit.Col("COLD START", func(f api.Function) string { return kit.Seconds(f.Expected) }),
		kit.Col("SOURCE", func(f api.Function) string { return f.Source }),
		kit.WideCol("FROM", func(f api.Function) string { return f.Origin }),
		kit.WideCol("PROBLEM", func(f api.Function) string { return f.Problem }),
	}, Name: func(f api.Function) string { return f.Name }, Owner: func(f api.Function) string { return f.Team }}
}

func Replicas(term *kit.Terminal) kit.Kind[functions.Replica] {
	return kit.Kind[functions.Replica]{Word: "Replica", Path: "/api/v1/replicas", Columns: []kit.Column[functions.Replica]{
		kit.Col("NAME", func(r functions.Replica) string { return ShortName(r.Function) }),
		kit.Col("STATE", func(r functions.Replica) string {
			s := r.State.Word()
			if r.Percent != nil {
				s += " " + strconv.Itoa(*r.Percent) + "%"
			}
			if r.Unprobed {
				s += " (unprobed)"
			}
			return s
		}),
		kit.Col("TIER", func(r functions.Replica) string { return string(r.Tier) }),
		kit.Col("NODE", func(r functions.Replica) string { return r.Node }),
		kit.Col("GPU", func(r functions.Replica) string {
			return strings.Trim(strings.ReplaceAll(fmt.Sprint(r.GPUs), " ", ","), "[]")
		}),
		kit.Col("SIZE", func(r functions.Replica) string {
			if b := max(r.Total, r.Bytes); b > 0 {
				return b.Human()
			}
			return ""
		}),
		kit.Col("ACTIVE", func(r functions.Replica) string { return strconv.Itoa(r.InFlight) }),
		kit.Col("FOR", func(r functions.Replica) string { return term.Since(r.Since) }),
		kit.WideCol("ID", func(r functions.Replica) string { return r.ID }),
		kit.WideCol("ENDPOINT", func(r functions.Replica) string { return r.Endpoint }),
		kit.WideCol("QUEUED", func(r functions.Replica) string { return strconv.Itoa(r.QueueLength) }),
		kit.WideCol("CACHE HITS", func(r functions.Replica) string { return fmt.Sprintf("%.0f%%", 100*r.KVCacheHitRate) }),
		kit.WideCol("START", func(r functions.Replica) string { return r.Start }),
		kit.WideCol("ADAPTERS", func(r functions.Replica) string { return strings.Join(r.Adapters, ",") }),
		kit.WideCol("ERROR", func(r functions.Replica) string { return r.Error }),
	}, Name: func(r functions.Replica) string { return r.ID }, Owner: func(r functions.Replica) string { return r.Function }}
}

func Nodes(term *kit.Terminal) kit.Kind[api.Node] {
	return kit.Kind[api.Node]{Word: "Node", Path: "/api/v1/nodes", Columns: []kit.Column[api.Node]{
		kit.Col("NAME", func(n api.Node) string { return n.ID }),
		kit.Col("STATE", func(n api.Node) string {
			if n.Lost {
				return "lost"
			}
			return string(n.State)
		}),
		kit.Col("GPUS", func(n api.Node) string { return strconv.Itoa(len(n.GPUs)) }),
		kit.Col("MEMORY", func(n api.Node) string { return n.Memory.Used.Human() + " of " + n.Memory.Total.Human() }),
		kit.Col("STORE", func(n api.Node) string { return n.Store.Used.Human() + " of " + n.Store.Bytes.Human() }),
		kit.Col("REPLICAS", func(n api.Node) string { return strconv.Itoa(n.Replicas) }),
		kit.Col("CACHED", func(n api.Node) string { return cachedModels(n.Near, term.Output == "wide") }),
		kit.Col("SEEN", func(n api.Node) string { return term.Since(n.Seen) + " ago" }),
		kit.WideCol("WARM", func(n api.Node) string { return warmParents(n.Warm) }),
		kit.WideCol("VERSION", func(n api.Node) string { return n.Version }),
		kit.WideCol("URL", func(n api.Node) string { return n.URL }),
	}, Name: func(n api.Node) string { return n.ID }}
}

// cachedModels names the models whose weights are on a node, the nearest first; not all of
// many, unless all are asked for.
func cachedModels(near []api.NodeModel, all bool) string {
	const most = 3
	var words []string
	for _, where := range []string{"memory", "disk"} {
		for _, n := range near {
			if n.TierWord() == where {
				words = append(words, ShortName(n.Model)+" ("+where+")")
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

// GPUTime is what a team has used of today's GPU-seconds.
func GPUTime(t api.Team) string {
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

func Teams() kit.Kind[api.Team] {
	return kit.Kind[api.Team]{Word: "TeamStatus", Path: "/api/v1/teams", Columns: []kit.Column[api.Team]{
		kit.Col("NAME", func(t api.Team) string { return t.Name }),
		kit.Col("FUNCTIONS", func(t api.Team) string { return strconv.Itoa(t.Functions) }),
		kit.Col("ACTIVE", func(t api.Team) string { return strconv.Itoa(t.Active) }),
		kit.Col("GPUS", func(t api.Team) string {
			if t.GPUs == (functions.TeamGPUs{}) {
				return ""
			}
			return fmt.Sprintf("%d to %d", t.GPUs.Guaranteed, t.GPUs.Max)
		}),
		kit.Col("HELD", func(t api.Team) string { return strconv.Itoa(t.TeamUse.GPUs) }),
		kit.Col("GPU TIME TODAY", func(t api.Team) string { return GPUTime(t) }),
		kit.Col("REQUESTS LEFT", func(t api.Team) string { return limitLeft(t.Requests, t.Limits.RequestsPerMinute) }),
		kit.Col("TOKENS LEFT", func(t api.Team) string { return limitLeft(t.Tokens, t.Limits.TokensPerMinute) }),
		kit.WideCol("EVICTED OTHERS", func(t api.Team) string { return strconv.FormatUint(t.EvictionsInflicted, 10) }),
		kit.WideCol("EVICTED BY OTHERS", func(t api.Team) string { return strconv.FormatUint(t.EvictionsSuffered, 10) }),
		kit.WideCol("COLD STARTS LEFT", func(t api.Team) string { return limitLeft(t.ColdStarts, t.Limits.ColdStartsPerHour) }),
	}, Name: func(t api.Team) string { return t.Name }, Owner: func(t api.Team) string { return t.Name }}
}

func ColdStarts(term *kit.Terminal) kit.Kind[api.ColdStart] {
	return kit.Kind[api.ColdStart]{Word: "ColdStart", Path: "/api/v1/coldstarts", Query: "?limit=1000", Columns: []kit.Column[api.ColdStart]{
		kit.Col("ID", func(t api.ColdStart) string { return t.ID }),
		kit.Col("NAME", func(t api.ColdStart) string { return ShortName(t.Function) }),
		kit.Col("STATE", func(t api.ColdStart) string { return t.State.Word() }),
		kit.Col("TOOK", func(t api.ColdStart) string { return kit.Seconds(&t.Total) }),
		kit.Col("LONGEST", func(t api.ColdStart) string {
			var most functions.Span
			for _, phase := range t.Phases {
				if phase.Duration > most.Duration {
					most = phase
				}
			}
			if most.Phase == "" {
				return ""
			}
			return string(most.Phase) + " " + kit.Seconds(&most.Duration)
		}),
		kit.Col("NODE", func(t api.ColdStart) string { return t.Node }),
		kit.Col("BEGAN", func(t api.ColdStart) string { return term.Since(t.Began) + " ago" }),
		kit.WideCol("ERROR", func(t api.ColdStart) string { return t.Error }),
	}, Name: func(t api.ColdStart) string { return t.ID }, Owner: func(t api.ColdStart) string { return t.Function }}
}

func Events(term *kit.Terminal) kit.Kind[functions.Event] {
	return kit.Kind[functions.Event]{Word: "Event", Path: "/api/v1/events", Columns: []kit.Column[functions.Event]{
		kit.Col("AGO", func(e functions.Event) string { return term.Since(e.At) }),
		kit.Col("WHAT", func(e functions.Event) string { return e.Kind }),
		kit.Col("NAME", func(e functions.Event) string { return ShortName(e.Function) }),
		kit.Col("NODE", func(e functions.Event) string { return e.Node }),
		kit.Col("WHY", func(e functions.Event) string { return e.Reason }),
		kit.Col("FOR", func(e functions.Event) string { return ShortName(e.For) }),
		kit.Col("MESSAGE", func(e functions.Event) string { return e.Message }),
		kit.WideCol("REPLICA", func(e functions.Event) string { return e.Replica }),
	}, Name: func(e functions.Event) string { return strconv.FormatUint(e.Seq, 10) },
		Owner: func(e functions.Event) string { return e.Function }}
}

func Agents(term *kit.Terminal) kit.Kind[functions.JoinedAgent] {
	return kit.Kind[functions.JoinedAgent]{Word: "Agent", Path: "/api/v1/agents", Columns: []kit.Column[functions.JoinedAgent]{
		kit.Col("NAME", func(a functions.JoinedAgent) string { return a.ID }),
		kit.Col("KEY", func(a functions.JoinedAgent) string { return a.Key[:min(12, len(a.Key))] }),
		kit.Col("JOINED", func(a functions.JoinedAgent) string { return term.Since(a.Joined) + " ago" }),
	}, Name: func(a functions.JoinedAgent) string { return a.ID }}
}

func Keys(term *kit.Terminal) kit.Kind[auth.Key] {
	return kit.Kind[auth.Key]{Word: "Key", Path: "/api/v1/keys", Columns: []kit.Column[auth.Key]{
		kit.Col("ID", func(k auth.Key) string { return k.ID }),
		kit.Col("TEAM", func(k auth.Key) string { return k.Team }),
		kit.Col("NAME", func(k auth.Key) string { return k.Name }),
		kit.Col("ADMIN", func(k auth.Key) string {
			if k.Admin {
				return "yes"
			}
			return "no"
		}),
		kit.Col("MADE", func(k auth.Key) string { return term.Since(k.Created) + " ago" }),
	}, Name: func(k auth.Key) string { return k.ID }}
}
