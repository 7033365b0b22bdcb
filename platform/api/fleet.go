package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

func teamOf(function string) string {
	team, _, _ := strings.Cut(function, "/")
	return team
}

// readable returns the items whose team the caller may see, never nil.
func readable[T any](x *exchange, items []T, team func(T) string) []T {
	return slices.DeleteFunc(append([]T{}, items...), func(v T) bool { return !x.mayRead(team(v)) })
}

// fleetHandlers answers for the nodes and the replicas on them.
type fleetHandlers struct {
	Platform
	logs func(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error)
}

func (f *fleetHandlers) replicas(x *exchange) ([]functions.Replica, *openai.Error) {
	items := readable(x, f.State.Replicas(), func(r functions.Replica) string { return teamOf(r.Function) })
	slices.SortFunc(items, func(p, q functions.Replica) int {
		return cmp.Or(cmp.Compare(p.Function, q.Function), p.Since.Compare(q.Since), cmp.Compare(p.ID, q.ID))
	})
	return items, nil
}

const (
	defaultTail = 200
	maxTail     = 100_000
)

func (f *fleetHandlers) log(x *exchange, res *httpserver.Response) *openai.Error {
	tail, ok := x.query.number("tail", defaultTail, maxTail)
	if !ok {
		return openai.New(openai.InvalidValue, "tail is a number of lines, at most 100000.").With("tail")
	}
	// A replica that has ended is no longer listed, but its log is what one wants to read
	// then. Its cold start tells whose it was.
	mayRead := func(replica, function string) bool { return replica == x.args[0] && x.mayRead(teamOf(function)) }
	if x.team() != "" &&
		!slices.ContainsFunc(f.State.Replicas(), func(r functions.Replica) bool { return mayRead(r.ID, r.Function) }) &&
		!slices.ContainsFunc(f.History.ColdStarts(0), func(t functions.Timeline) bool { return mayRead(t.Replica, t.Function) }) {
		return notFound("The replica " + x.args[0])
	}
	on := x.query.on("follow")
	r, err := openFollowed(x, func(ctx context.Context) (io.ReadCloser, error) { return f.logs(ctx, x.args[0], tail, on) })
	if errors.Is(err, functions.ErrNotFound) {
		why := strings.TrimPrefix(err.Error(), functions.ErrNotFound.Error())
		return openai.New(openai.NotFound, "The log of "+x.args[0]+" does not exist"+why+".")
	}
	if err != nil {
		return openai.New(openai.InternalError, "The log cannot be read: "+err.Error())
	}
	res.Set("content-type", "text/plain; charset=utf-8")
	res.Stream, res.Length = r, -1
	return nil
}

// nodes lists the nodes, to all readers: a team sees what its models run on. What others
// keep and run there, and where the agent is reached, a team's key does not see.
func (f *fleetHandlers) nodes(x *exchange) ([]Node, *openai.Error) {
	sources := Sources{}
	for _, m := range f.Catalog.Models() {
		if x.mayRead(m.Metadata.Namespace) {
			sources.Add(m.FullName().String(), m.Spec.Source, m.Dir)
		}
	}
	serving, own := map[string][]string{}, map[string]int{}
	for _, r := range f.State.Replicas() {
		if !x.mayRead(teamOf(r.Function)) {
			continue
		}
		own[r.Node]++
		if r.State == functions.Ready {
			serving[r.Node] = append(serving[r.Node], r.Function)
		}
	}
	items := []Node{}
	for _, r := range f.State.Nodes() {
		n := Node{Node: r}
		if !r.Lost {
			n.Near = sources.CachedModels(r.Cached, serving[r.ID])
		}
		if x.team() != "" {
			n.Cached, n.Warm, n.URL, n.Replicas = nil, nil, "", own[n.ID]
		}
		n.GPUs = orEmpty(n.GPUs)
		items = append(items, n)
	}
	slices.SortFunc(items, func(p, q Node) int { return cmp.Compare(p.ID, q.ID) })
	return items, nil
}

// teamHandlers answers for the teams.
type teamHandlers struct {
	Platform
	keys *auth.KeyStore
}

// teams are those with a file, a function or a key.
func (t *teamHandlers) teams(x *exchange) ([]Team, *openai.Error) {
	byName := map[string]*Team{}
	get := func(name string) *Team {
		v := byName[name]
		if v == nil {
			v = &Team{Name: name}
			byName[name] = v
		}
		return v
	}
	for _, team := range t.Catalog.Teams() {
		v := get(team.Metadata.Name)
		v.GPUs, v.Limits, v.Data = team.Spec.GPUs, team.Spec.Limits, team.Spec.Data
	}
	for _, d := range t.Catalog.Documents() {
		v := get(d.FullName().Team)
		v.Functions++
		active, queued, _ := t.Demand(d.FullName())
		v.Active += active + queued
	}
	for _, k := range t.keys.List("") {
		get(k.Team)
	}
	items := []Team{}
	for name, v := range byName {
		if !x.mayRead(name) {
			continue
		}
		var u ratelimit.Usage
		if t.Usage != nil {
			u = t.Usage(name)
		}
		if v.Limits.RequestsPerMinute > 0 {
			v.Requests = &u.Requests
		}
		if v.Limits.TokensPerMinute > 0 {
			v.Tokens = &u.Tokens
		}
		if v.Limits.ColdStartsPerHour > 0 {
			v.ColdStarts = &u.ColdStarts
		}
		v.Held = u.Held
		if t.Spending != nil {
			v.Spent = t.Spending.TeamSpentToday(name)
		}
		if t.TeamUse != nil {
			v.TeamUse = t.TeamUse(name)
		}
		items = append(items, *v)
	}
	slices.SortFunc(items, func(p, q Team) int { return cmp.Compare(p.Name, q.Name) })
	return items, nil
}
