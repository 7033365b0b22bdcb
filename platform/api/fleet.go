package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

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

func (a *API) replicas(x *exchange) ([]functions.Replica, *openai.Error) {
	items := readable(x, a.o.State.Replicas(), func(r functions.Replica) string { return teamOf(r.Function) })
	slices.SortFunc(items, func(p, q functions.Replica) int {
		return cmp.Or(cmp.Compare(p.Function, q.Function), p.Since.Compare(q.Since), cmp.Compare(p.ID, q.ID))
	})
	return items, nil
}

func (a *API) findReplica(x *exchange) (functions.Replica, *openai.Error) {
	return findItem("The replica ", a.replicas, func(r functions.Replica) string { return r.ID })(x)
}

const (
	defaultTail = 200
	maxTail     = 100_000
)

func (a *API) logs(x *exchange, res *httpserver.Response) *openai.Error {
	tail, ok := x.query.number("tail", defaultTail, maxTail)
	if !ok {
		return openai.New(openai.InvalidValue, "tail is a number of lines, at most 100000.").With("tail")
	}
	// A replica that has ended is no longer listed, but its log is what one wants to read
	// then. Its cold start tells whose it was.
	if _, err := a.findReplica(x); err != nil && x.team() != "" &&
		!slices.ContainsFunc(a.o.History.ColdStarts(0), func(t functions.Timeline) bool {
			return t.Replica == x.args[0] && x.mayRead(teamOf(t.Function))
		}) {
		return err
	}
	on := x.query.on("follow")
	r, err := openFollowed(x, func(ctx context.Context) (io.ReadCloser, error) { return a.o.Logs(ctx, x.args[0], tail, on) })
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
func (a *API) nodes(x *exchange) ([]Node, *openai.Error) {
	sources := Sources{}
	for _, m := range a.o.Catalog.Models() {
		if x.mayRead(m.Metadata.Namespace) {
			sources.Add(m.FullName().String(), m.Spec.Source, m.Dir)
		}
	}
	serving, own := map[string][]string{}, map[string]int{}
	for _, r := range a.o.State.Replicas() {
		if !x.mayRead(teamOf(r.Function)) {
			continue
		}
		own[r.Node]++
		if r.State == functions.Ready {
			serving[r.Node] = append(serving[r.Node], r.Function)
		}
	}
	items := []Node{}
	for _, r := range a.o.State.Nodes() {
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

// teams are those with a file, a function or a key.
func (a *API) teams(x *exchange) ([]Team, *openai.Error) {
	byName := map[string]*Team{}
	get := func(name string) *Team {
		t := byName[name]
		if t == nil {
			t = &Team{Name: name}
			byName[name] = t
		}
		return t
	}
	for _, t := range a.o.Catalog.Teams() {
		v := get(t.Metadata.Name)
		v.GPUs, v.Limits, v.Data = t.Spec.GPUs, t.Spec.Limits, t.Spec.Data
	}
	for _, d := range a.o.Catalog.Documents() {
		v := get(d.FullName().Team)
		v.Functions++
		active, queued := a.o.Demand(d.FullName())
		v.Active += active + queued
	}
	for _, k := range a.o.Keys.List("") {
		get(k.Team)
	}
	items := []Team{}
	for name, t := range byName {
		if !x.mayRead(name) {
			continue
		}
		var u ratelimit.Usage
		if a.o.Usage != nil {
			u = a.o.Usage(name)
		}
		if t.Limits.RequestsPerMinute > 0 {
			t.Requests = &u.Requests
		}
		if t.Limits.TokensPerMinute > 0 {
			t.Tokens = &u.Tokens
		}
		if t.Limits.ColdStartsPerHour > 0 {
			t.ColdStarts = &u.ColdStarts
		}
		t.Held = u.Held
		if a.o.Spending != nil {
			t.Spent = a.o.Spending.TeamSpentToday(name)
		}
		if a.o.TeamUse != nil {
			t.TeamUse = a.o.TeamUse(name)
		}
		items = append(items, *t)
	}
	slices.SortFunc(items, func(p, q Team) int { return cmp.Compare(p.Name, q.Name) })
	return items, nil
}
