package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// This file translates between the control API, which speaks of models (Knative
// Services), and the controller, which speaks of revisions. A request about a Service is
// answered by the revision that serves it; the id of a replica names its revision.

func (t *leaderTerm) control() http.Handler {
	a := api.New(api.Options{
		Platform: api.Platform{Catalog: apiCatalog{t}, State: t, History: t, Demand: t.demand, TeamUse: t.orchestrator.TeamUse,
			Usage: func(team string) ratelimit.Usage { return t.limits.usage(team, time.Now()) }},
		Access:    api.Access{Keys: t.teams.KeyStore()},
		Functions: api.Functions{Starter: apiActions{t}, AdaptersByRequest: true},
		Caches:    api.Caches{Stores: noStore{}}, Ahead: apiActions{t},
		Explain: t.explain, Logs: t.logs, Changed: t.orchestrator.Changes, Ready: t.missing,
		Metrics: t.metrics.Text, Version: t.c.o.Version, Log: t.c.o.Log,
	})
	return httpserver.NewNetHTTPHandler(httpserver.Options{Handler: a.Serve, Authorize: a.Authorize, MaxBody: 1 << 20,
		Bodies: httpserver.NewBudget(64<<20, 32<<20), Logger: t.c.o.Log})
}

func (t *leaderTerm) missing() []string {
	if !t.settled.Load() {
		return []string{"collecting reports of running replicas"}
	}
	return nil
}

// current returns the revision that answers for a Service: the newest with a replica,
// else the newest. The name of a revision is returned unchanged.
func (t *leaderTerm) current(name functions.Name) functions.Name {
	if t.catalog.get(name.WithoutAdapter()) != nil {
		return name.WithoutAdapter()
	}
	of := t.catalog.revisionsOf(name.WithoutAdapter())
	for i := len(of) - 1; i >= 0; i-- {
		if f, ok := t.orchestrator.Function(of[i]); ok && (len(f.Replicas) > 0 || f.Starting()) {
			return of[i]
		}
	}
	if len(of) > 0 {
		return of[len(of)-1]
	}
	return functions.Name{}
}

// public returns a function's public name: its Service, else the revision itself.
func (t *leaderTerm) public(function string) string {
	name, err := functions.ParseName(function, functions.DefaultTeam)
	if err != nil {
		return function
	}
	if s, _ := t.catalog.serviceOf(name); s != "" {
		return functions.Name{Team: name.Team, Name: s}.String()
	}
	return function
}

// apiCatalog lists one model for each Service.
type apiCatalog struct{ r *leaderTerm }

func (c apiCatalog) Model(name functions.Name) *functions.Model {
	v := c.r.catalog.get(c.r.current(name))
	if v == nil {
		return nil
	}
	m := *v.model
	if v.service != "" {
		m.Metadata.Name = v.service
	}
	return &m
}

func (c apiCatalog) Models() []*functions.Model {
	var out []*functions.Model
	seen := map[functions.Name]bool{}
	for _, m := range c.r.catalog.Models() {
		name := m.FullName()
		if service, _ := c.r.catalog.serviceOf(name); service != "" {
			name.Name = service
		}
		if !seen[name] {
			seen[name] = true
			if m := c.Model(name); m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

func (c apiCatalog) Teams() []*functions.Team { return c.r.catalog.Teams() }

var errDeploy = fmt.Errorf("%w: on Kubernetes a model is a Knative Service: thaw deploy --to knative, thaw rm --to knative, or kubectl",
	catalog.ErrReadOnly)

// Documents are the models: a cluster has no functions of other kinds yet.
func (c apiCatalog) Documents() []catalog.Document {
	docs := functions.ConvertAll(c.Models(), func(m *functions.Model) catalog.Document { return catalog.Document{Model: m} })
	slices.SortFunc(docs, func(a, b catalog.Document) int { return cmp.Compare(a.FullName().String(), b.FullName().String()) })
	return docs
}

func (c apiCatalog) Lookup(name functions.Name) (catalog.Document, bool) {
	m := c.Model(name)
	return catalog.Document{Model: m}, m != nil
}

func (c apiCatalog) Check(name functions.Name, doc []byte, _ ...functions.Name) (catalog.Checked, error) {
	docs, err := catalog.DecodeTenant(name.String(), doc)
	if err == nil && len(docs) == 1 && docs[0].Model == nil && docs[0].Team == nil {
		return catalog.Checked{}, fmt.Errorf("%w: a %s is not on Kubernetes yet", catalog.ErrReadOnly, docs[0].Kind())
	}
	return catalog.Checked{}, errDeploy
}
func (c apiCatalog) Put(functions.Name, []byte) (bool, error) { return false, errDeploy }
func (c apiCatalog) Delete(functions.Name) error              { return errDeploy }

// Function returns the snapshot of a Service: that of its current revision, with the
// replicas of all its revisions.
func (t *leaderTerm) Function(name functions.Name) (snapshot.Snapshot, bool) {
	current := t.current(name)
	f, ok := t.orchestrator.Function(current)
	if !ok {
		return f, false
	}
	for _, other := range t.catalog.revisionsOf(name) {
		if o, ok := t.orchestrator.Function(other); ok && other != current {
			f.Replicas = append(f.Replicas, o.Replicas...)
		}
	}
	return f, true
}

func (t *leaderTerm) Replicas() []functions.Replica {
	list := t.orchestrator.Replicas()
	for i := range list {
		list[i].Function = t.public(list[i].Function)
	}
	return list
}

func (t *leaderTerm) Nodes() []functions.Node { return t.orchestrator.Nodes() }

func (t *leaderTerm) ColdStart(id string) (functions.Timeline, bool) {
	timeline, ok := t.orchestrator.ColdStart(id)
	timeline.Function = t.public(timeline.Function)
	return t.firstTokens.complete(timeline), ok
}

// ColdStarts lists the latest cold starts, the newest first.
func (t *leaderTerm) ColdStarts(limit int) []functions.Timeline {
	list := t.orchestrator.ColdStarts(limit)
	for i := range list {
		list[i].Function = t.public(list[i].Function)
		list[i] = t.firstTokens.complete(list[i])
	}
	return list
}

// Events lists the events with a higher number than after.
func (t *leaderTerm) Events(after uint64) []functions.Event {
	list := t.orchestrator.Events(after)
	for i := range list {
		list[i].Function, list[i].For = t.public(list[i].Function), t.public(list[i].For)
	}
	return list
}

// apiActions wakes, prewarms and stops models.
type apiActions struct{ r *leaderTerm }

func (a apiActions) WakeFor(name functions.Name, lease time.Duration) string {
	of := a.r.current(name)
	of.Adapter = name.Adapter
	return a.r.orchestrator.WakeFor(of, lease)
}

func (a apiActions) Stop(name functions.Name) {
	for _, of := range a.r.catalog.revisionsOf(name.WithoutAdapter()) {
		a.r.orchestrator.Stop(of)
	}
}

// Prewarm starts the revision that serves a Service ahead of demand.
func (a apiActions) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	p, err := a.r.orchestrator.Prewarm(a.r.current(name), until, tier, by)
	p.Function = a.r.public(p.Function)
	return p, err
}

func (a apiActions) Prewarms() []functions.Prewarm {
	list := a.r.orchestrator.Prewarms()
	for i := range list {
		list[i].Function = a.r.public(list[i].Function)
	}
	return list
}

// PrewarmLeft is the GPU time that a team may still have started ahead.
func (a apiActions) PrewarmLeft(team string) time.Duration { return a.r.orchestrator.PrewarmLeft(team) }

// demand sums the demand of a Service's revisions; the oldest request is not known.
func (t *leaderTerm) demand(name functions.Name) (active, queued int, _ time.Time) {
	for _, of := range append(t.catalog.revisionsOf(name), name) {
		d := t.dataPath.demandOf(of)
		active, queued = active+d.Active, queued+d.Queued
	}
	return active, queued, time.Time{}
}

// explain returns an explanation with Services in place of revisions.
func (t *leaderTerm) explain(kind string, name functions.Name) (functions.Explanation, bool) {
	e, ok := t.orchestrator.Explain(kind, t.current(name))
	e.Function, e.For = name.String(), t.public(e.For)
	for i := range e.Candidates {
		e.Candidates[i].Function = t.public(e.Candidates[i].Function)
	}
	return e, ok
}

func (t *leaderTerm) logs(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error) {
	namespace, name, ok := t.cluster.PodOf(replica)
	if !ok {
		return nil, fmt.Errorf("%w: replica %.80q has no pod", functions.ErrNotFound, replica)
	}
	container := "user-container"
	if p, err := t.c.core.Core().V1().Pods().Lister().Pods(namespace).Get(name); err == nil {
		for _, c := range p.Spec.Containers {
			if c.Name != "queue-proxy" {
				container = c.Name
				break
			}
		}
	}
	o := &corev1.PodLogOptions{Container: container, Follow: follow}
	if tail > 0 {
		o.TailLines = new(int64(min(tail, math.MaxInt32)))
	}
	body, err := t.c.kube.CoreV1().Pods(namespace).GetLogs(name, o).Stream(ctx)
	if status.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", functions.ErrNotFound, err)
	}
	return body, err
}

// noStore answers for stores, which a controller has none of.
type noStore struct{}

var errStores = errors.New("not served on Kubernetes: run thaw cache ls in the loader's pod of the node (kubectl exec)")

func (noStore) Cached(context.Context, string) ([]functions.CacheEntry, []string, error) {
	return nil, nil, errStores
}
func (noStore) ChangeCheckpoint(context.Context, string, string, functions.StoreAction) ([]string, error) {
	return nil, errStores
}
func (noStore) VerifyCheckpoint(context.Context, string, string, func(functions.StoreProgress)) error {
	return errStores
}
func (noStore) Prefetch(context.Context, string, functions.PrefetchRequest, func(functions.StoreProgress)) error {
	return errStores
}

// firstTokens keeps the first_token phase of cold starts, which only activators measure:
// from READY to the first byte of the engine's answer. Its values are time.Duration, by cold
// start id.
type firstTokens struct{ *lru.Cache }

const maxFirstTokens = 1024

// record stores the phase of a cold start. The first report of several activators counts.
func (f firstTokens) record(_ functions.Name, coldStart string, took time.Duration) {
	if _, ok := f.Get(coldStart); !ok && coldStart != "" {
		f.Add(coldStart, took)
	}
}

func (f firstTokens) complete(t functions.Timeline) functions.Timeline {
	if took, ok := f.Get(t.ID); ok {
		return t.WithFirstToken(took.(time.Duration))
	}
	return t
}
