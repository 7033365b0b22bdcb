package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// right says who may call a path.
type right int

const (
	read  right = iota // where /v1 is open anybody, else a key; a team's key sees its team
	admin              // the admin token or an admin key
	join               // the join token
	probe              // anybody
	own                // a key: a team's for what is the team's, an admin's for all
)

func (r right) String() string { return [...]string{"read", "admin", "join", "probe", "own"}[r] }

// endpoint is one row of the table.
type endpoint struct {
	method, path string
	right        right
	query        []string
	summary      string
	body         any // a value of the type of the body; nil: none
	status       int
	answer       any // a value of the type of the answer; nil: text, or nothing with 204
	do           func(*exchange, *httpserver.Response) *openai.Error
	segments     []string
}

func (a *API) table() []endpoint {
	rows := []endpoint{
		{method: "GET", path: "/api/v1/functions", query: []string{"watch"}, summary: "All functions.", answer: List[Function]{}, do: list(a, a.functions, func(f Function) string { return f.Name })},
		{method: "GET", path: "/api/v1/functions/{team}/{name}", summary: "One function, with its spec.", answer: Function{}, do: a.function},
		{method: "PUT", path: "/api/v1/functions/{team}/{name}", right: admin, query: []string{"dryRun"}, summary: "Deploy a model: the body is its file, YAML or JSON. With dryRun nothing changes. 201 when it is new.", body: functions.Model{}, answer: Deployed{}, do: a.deploy},
		{method: "DELETE", path: "/api/v1/functions/{team}/{name}", right: admin, summary: "Forget a deployed model.", status: 204, do: a.remove},
		{method: "POST", path: "/api/v1/functions/{team}/{name}/wake", right: admin, summary: "Wake a function, for a lease or its idle time, at least a minute.", body: WakeRequest{}, status: 202, answer: Woken{}, do: a.wake},
		{method: "POST", path: "/api/v1/functions/{team}/{name}/stop", right: admin, summary: "Drain the replicas of a function. Demand brings it back.", status: 202, answer: Woken{}, do: a.stop},
		{method: "GET", path: "/api/v1/replicas", query: []string{"watch"}, summary: "All replicas.", answer: List[functions.Replica]{}, do: list(a, a.replicas, func(r functions.Replica) string { return r.ID })},
		{method: "GET", path: "/api/v1/replicas/{id}", summary: "One replica.", answer: functions.Replica{}, do: a.replica},
		{method: "GET", path: "/api/v1/replicas/{id}/logs", query: []string{"follow", "tail"}, summary: "The log of a replica's engine, as text.", do: a.logs},
		{method: "GET", path: "/api/v1/nodes", query: []string{"watch"}, summary: "All nodes.", answer: List[Node]{}, do: list(a, a.nodes, func(n Node) string { return n.ID })},
		{method: "GET", path: "/api/v1/nodes/{id}", summary: "One node.", answer: Node{}, do: a.node},
		{method: "GET", path: "/api/v1/teams", query: []string{"watch"}, summary: "All teams.", answer: List[Team]{}, do: list(a, a.teams, func(t Team) string { return t.Name })},
		{method: "GET", path: "/api/v1/teams/{team}", summary: "One team.", answer: Team{}, do: a.team},
		{method: "GET", path: "/api/v1/coldstarts", query: []string{"watch", "limit"}, summary: "The newest cold starts, newest first.", answer: List[ColdStart]{}, do: list(a, a.coldStarts, func(c ColdStart) string { return c.ID })},
		{method: "GET", path: "/api/v1/coldstarts/{id}", summary: "One cold start, by its id, a request's id or the client's X-Client-Request-Id.", answer: ColdStart{}, do: a.coldStart},
		{method: "GET", path: "/api/v1/explain/{kind}/{team}/{name}", summary: "Why a function is as it is: kind is place (where it was placed, or why nowhere), evict (who made way for it), cold (why it lost a replica) or scale (why it wants more), with the candidates and scores of the last decision.", answer: functions.Explanation{}, do: a.explain},
		{method: "GET", path: "/api/v1/events", query: []string{"watch", "since", "function", "kind"}, summary: "What happened, oldest first; since is the last seq already known, function a TEAM/NAME, kind what happened.", answer: List[functions.Event]{}, do: list(a, a.events, func(e functions.Event) string { return "" })},
		{method: "GET", path: "/api/v1/schema", summary: "The JSON schema of model and team files.", answer: map[string]any{}, do: a.schema},
		{method: "GET", path: "/api/v1/keys", right: admin, query: []string{"team"}, summary: "All keys, without their secrets.", answer: List[auth.Key]{}, do: a.keys},
		{method: "POST", path: "/api/v1/keys", right: admin, summary: "Make a key. Its secret is in this answer and nowhere else.", body: KeyRequest{}, status: 201, answer: NewKey{}, do: a.createKey},
		{method: "DELETE", path: "/api/v1/keys/{id}", right: admin, summary: "End a key at once.", status: 204, do: a.deleteKey},
		{method: "GET", path: "/api/v1/cache", right: admin, query: []string{"node"}, summary: "The checkpoints in the stores of the nodes, last used first.", answer: Cache{}, do: a.cache},
		{method: "DELETE", path: "/api/v1/cache/{digest}", right: admin, query: []string{"node"}, summary: "Remove a checkpoint that is not in use; digest is its 64 hex digits.", answer: Kept{}, do: a.keep(functions.StoreRemove)},
		{method: "POST", path: "/api/v1/cache/{digest}/pin", right: admin, query: []string{"node"}, summary: "Keep a checkpoint from being evicted.", answer: Kept{}, do: a.keep(functions.StorePin)},
		{method: "POST", path: "/api/v1/cache/{digest}/unpin", right: admin, query: []string{"node"}, summary: "Take a pin back.", answer: Kept{}, do: a.keep(functions.StoreUnpin)},
		{method: "POST", path: "/api/v1/cache/{digest}/verify", right: admin, query: []string{"node"}, summary: "Read a checkpoint again and take out what is not what it was: lines of JSON until one is ready or failed, for every node.", answer: functions.StoreProgress{}, do: a.reread},
		{method: "POST", path: "/api/v1/prefetch", right: admin, summary: "Bring a model's weights, or a source, to a node: lines of JSON until one is ready or failed. It is called off when the client leaves; what has arrived stays.", body: PrefetchRequest{}, answer: functions.StoreProgress{}, do: a.prefetch},
		{method: "POST", path: "/api/v1/prewarm", right: own, summary: "Say that a model will be asked for, with a key of its team or of an admin. It is started where nobody who waits needs the room, or its bytes are brought near; it is a lease until then, on a budget of GPU time. Once more renews it.", body: PrewarmRequest{}, status: 202, answer: Prewarmed{}, do: a.prewarm},
		{method: "GET", path: "/api/v1/prewarm", summary: "The prewarms that hold, those of history among them.", answer: Prewarms{}, do: a.prewarms},
		{method: "POST", path: "/api/v1/heartbeat", right: join, summary: "What an agent says of itself. The answer names the other nodes that lend blocks.", body: functions.Heartbeat{}, answer: functions.HeartbeatReply{}, do: a.heartbeat},
		{method: "GET", path: "/metrics", summary: "Metrics, as Prometheus reads them.", do: a.metrics},
		{method: "GET", path: "/healthz", right: probe, summary: "200 while the process lives.", do: a.healthz},
		{method: "GET", path: "/readyz", right: probe, summary: "200 when requests are taken, else 503.", answer: Readiness{}, do: a.readyz},
		{method: "GET", path: "/openapi.json", summary: "This document.", answer: map[string]any{}, do: a.openapi},
	}
	for i := range rows {
		rows[i].segments = strings.Split(rows[i].path, "/")
		rows[i].status = cmp.Or(rows[i].status, http.StatusOK)
	}
	return rows
}

// say writes v as JSON.
func say(res *httpserver.Response, status int, v any) *openai.Error {
	b, err := json.Marshal(v)
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Status, res.Body = status, append(b, '\n')
	res.Set("content-type", "application/json")
	return nil
}

func notFound(what string) *openai.Error { return openai.New(openai.NotFound, what+" does not exist.") }

// maxBody bounds the small JSON bodies; a model file has the catalog's own bound.
const maxBody = 4 << 20

// take reads a JSON body strictly. An empty one is the zero value.
func take(x *exchange, v any) *openai.Error {
	if len(x.Body) == 0 {
		return nil
	}
	if len(x.Body) > maxBody {
		return openai.New(openai.RequestTooLarge, "")
	}
	d := json.NewDecoder(bytes.NewReader(x.Body))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("something follows it")
	}
	if err != nil {
		return openai.New(openai.InvalidJSON, "The body is not the JSON this endpoint takes: "+strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

func (x *exchange) name() functions.Name { return functions.Name{Team: x.args[0], Name: x.args[1]} }

// find is the model a path names, for who may see it.
func (a *API) find(x *exchange) (*functions.Model, *openai.Error) {
	name := x.name()
	m := a.o.Catalog.Model(name)
	if m == nil || !x.sees(name.Team) {
		var names []string
		for _, m := range a.o.Catalog.Models() {
			if x.sees(m.Metadata.Namespace) {
				names = append(names, m.FullName().String())
			}
		}
		err := notFound("The function " + name.String())
		if near := functions.Nearest(name.String(), names, 3); len(near) > 0 {
			err.Message += " Did you mean " + strings.Join(near, ", ") + "?"
		}
		return nil, err
	}
	return m, nil
}

func (a *API) view(m *functions.Model) Function {
	name := m.FullName()
	f := Function{Name: name.String(), Team: name.Team, Model: name.Name, State: functions.Unloaded,
		Engine: m.Spec.Engine, Source: m.Spec.Source, Origin: m.Origin}
	f.Active, f.Queued = a.o.Demand(name)
	now, ok := a.o.World.Function(name)
	if !ok {
		return f
	}
	f.State = cmp.Or(now.State, functions.Unloaded)
	f.Replicas = len(now.Replicas)
	if now.Starting() {
		f.Percent, f.ETA = known(now.Progress.Percent), seconds(now.Progress.ETA)
	}
	if now.Forecast.P50 > 0 {
		f.Expected = seconds(now.Forecast.P50)
	}
	if now.ColdStart != nil {
		f.ColdStart = now.ColdStart.ID
	}
	switch {
	case now.Failure != nil:
		f.Problem = now.Failure.Reason
		if f.State == functions.Unloaded {
			f.State = functions.Failed
		}
	case now.Blocked != nil:
		f.Problem = cmp.Or(now.Blocked.Message, blocked(now.Blocked))
	}
	return f
}

func blocked(b *snapshot.Blocked) string { return strings.ReplaceAll(b.Code, "_", " ") }

func (a *API) functions(x *exchange) ([]Function, *openai.Error) {
	items := []Function{}
	for _, m := range a.o.Catalog.Models() {
		if x.sees(m.Metadata.Namespace) {
			items = append(items, a.view(m))
		}
	}
	return items, nil
}

func (a *API) function(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x)
	if err != nil {
		return err
	}
	f := a.view(m)
	f.Spec = x.spec(m)
	return say(res, 200, f)
}

// hidden stands for a value that the caller may not see.
const hidden = "(hidden)"

// spec of a model as the caller may see it. What an engine's environment holds
// is often a secret, and who may read is not who may deploy: only admins see it.
func (c caller) spec(m *functions.Model) *functions.ModelSpec {
	if c.known && c.id.Admin || len(m.Spec.Env) == 0 {
		return &m.Spec
	}
	spec := m.Spec
	spec.Env = make(map[string]string, len(m.Spec.Env))
	for name := range m.Spec.Env {
		spec.Env[name] = hidden
	}
	return &spec
}

func (a *API) deploy(x *exchange, res *httpserver.Response) *openai.Error {
	name := x.name()
	if !functions.IsLabel(name.Team) || !functions.IsLabel(name.Name) {
		return openai.New(openai.InvalidValue, "Team and name are DNS labels: lower-case letters, digits and '-'.")
	}
	if len(x.Body) > catalog.MaxFile {
		return openai.New(openai.RequestTooLarge, "A model file is at most "+functions.Bytes(catalog.MaxFile).Human()+".")
	}
	m, created, err := a.o.Catalog.Check(name, x.Body)
	dry := x.query.on("dryRun")
	if err == nil && !dry {
		created, err = a.o.Catalog.Put(name, x.Body)
	}
	if err != nil {
		return refusal(err)
	}
	if kept := a.o.Catalog.Model(name); kept != nil && !dry {
		m = kept
	}
	d := Deployed{Function: a.view(m), Created: created, DryRun: dry}
	d.Spec = &m.Spec
	status := 200
	if created && !dry {
		status = 201
	}
	return say(res, status, d)
}

// refusal is the catalog's error on the wire.
func refusal(err error) *openai.Error {
	if p, ok := errors.AsType[catalog.Problems](err); ok {
		return openai.New(openai.InvalidValue, p.Error()).With(p[0].Path)
	}
	switch {
	case errors.Is(err, catalog.ErrConflict), errors.Is(err, catalog.ErrReadOnly):
		return openai.New(openai.Conflict, err.Error())
	case errors.Is(err, catalog.ErrNotFound):
		return openai.New(openai.NotFound, err.Error())
	}
	return openai.New(openai.InternalError, "The function could not be kept: "+err.Error())
}

func (a *API) remove(x *exchange, res *httpserver.Response) *openai.Error {
	if err := a.o.Catalog.Delete(x.name()); err != nil {
		return refusal(err)
	}
	res.Status = 204
	return nil
}

// leastLease is that of a wake that names none, where the model's idle time is
// shorter: whoever wakes it comes back for it.
const leastLease = time.Minute

// maxLease bounds a wake without demand: whoever wants longer wants scale.min.
const maxLease = 7 * 24 * time.Hour

func (a *API) wake(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x)
	if err != nil {
		return err
	}
	var w WakeRequest
	if err := take(x, &w); err != nil {
		return err
	}
	lease := w.Lease.Std()
	if !w.Until.IsZero() {
		if lease != 0 {
			return openai.New(openai.InvalidValue, "Give lease or until, not both.").With("until")
		}
		if lease = time.Until(w.Until); lease <= 0 {
			return openai.New(openai.InvalidValue, "until is in the past.").With("until")
		}
	}
	if lease > maxLease {
		return openai.New(openai.InvalidValue, "A lease is at most 7 days; scale.min keeps a replica for good.").With("lease")
	}
	if lease == 0 {
		lease = max(m.Spec.Scale.Idle.Std(), leastLease)
	}
	name := m.FullName()
	if name.Adapter = w.Adapter; w.Adapter != "" && !slices.ContainsFunc(m.Spec.Adapters, func(x functions.Adapter) bool { return x.Name == w.Adapter }) {
		return openai.New(openai.AdapterNotFound, "The model "+m.FullName().String()+" has no adapter "+functions.Clip(w.Adapter)+".").With("adapter")
	}
	id := a.o.Hand.WakeFor(name, lease)
	f := a.view(m)
	if f.State == functions.Ready {
		id = ""
	}
	return say(res, 202, Woken{Function: f.Name, State: f.State, ColdStart: id})
}

func (a *API) stop(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x)
	if err != nil {
		return err
	}
	a.o.Hand.Stop(m.FullName())
	f := a.view(m)
	if !f.State.Over() { // it has been told to go, though it has not heard yet
		f.State = functions.Draining
	}
	return say(res, 202, Woken{Function: f.Name, State: f.State})
}

func teamOf(function string) string {
	team, _, _ := strings.Cut(function, "/")
	return team
}

func (a *API) replicas(x *exchange) ([]functions.Replica, *openai.Error) {
	items := []functions.Replica{}
	for _, r := range a.o.World.Replicas() {
		if x.sees(teamOf(r.Function)) {
			items = append(items, r)
		}
	}
	slices.SortFunc(items, func(p, q functions.Replica) int {
		return cmp.Or(cmp.Compare(p.Function, q.Function), p.Since.Compare(q.Since), cmp.Compare(p.ID, q.ID))
	})
	return items, nil
}

func (a *API) findReplica(x *exchange) (functions.Replica, *openai.Error) {
	items, err := a.replicas(x)
	if err != nil {
		return functions.Replica{}, err
	}
	i := slices.IndexFunc(items, func(r functions.Replica) bool { return r.ID == x.args[0] })
	if i < 0 {
		return functions.Replica{}, notFound("The replica " + x.args[0])
	}
	return items[i], nil
}

func (a *API) replica(x *exchange, res *httpserver.Response) *openai.Error {
	r, err := a.findReplica(x)
	if err != nil {
		return err
	}
	return say(res, 200, r)
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
	// A replica that has ended is no longer listed, but its log is what one
	// wants to read then; only who sees everything may ask for it.
	if _, err := a.findReplica(x); err != nil && x.team() != "" {
		return err
	}
	on := x.query.on("follow")
	r, err := follow(x, func(ctx context.Context) (io.ReadCloser, error) { return a.o.Logs(ctx, x.args[0], tail, on) })
	if errors.Is(err, functions.ErrNotFound) {
		return notFound("The log of " + x.args[0])
	}
	if err != nil {
		return openai.New(openai.InternalError, "The log cannot be read: "+err.Error())
	}
	res.Set("content-type", "text/plain; charset=utf-8")
	res.Stream, res.Length = r, -1
	return nil
}

// nodes are seen by all readers: a team wants to know what its models run on.
// What others keep there is not theirs to see.
func (a *API) nodes(x *exchange) ([]Node, *openai.Error) {
	sources := Sources{}
	for _, m := range a.o.Catalog.Models() {
		if x.sees(m.Metadata.Namespace) {
			sources.Add(m.FullName().String(), m.Spec.Source, m.Dir)
		}
	}
	serving := map[string][]string{}
	for _, r := range a.o.World.Replicas() {
		if r.State == functions.Ready && x.sees(teamOf(r.Function)) {
			serving[r.Node] = append(serving[r.Node], r.Function)
		}
	}
	items := []Node{}
	for _, r := range a.o.World.Nodes() {
		n := Node{Node: r}
		if !r.Lost {
			n.Near = sources.Near(r.Cached, serving[r.ID])
		}
		if x.team() != "" {
			n.Cached, n.Warm = nil, nil
		}
		if n.GPUs == nil {
			n.GPUs = []functions.GPU{}
		}
		items = append(items, n)
	}
	slices.SortFunc(items, func(p, q Node) int { return cmp.Compare(p.ID, q.ID) })
	return items, nil
}

func (a *API) node(x *exchange, res *httpserver.Response) *openai.Error {
	items, err := a.nodes(x)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(items, func(n Node) bool { return n.ID == x.args[0] })
	if i < 0 {
		return notFound("The node " + x.args[0])
	}
	return say(res, 200, items[i])
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
		v.GPUs, v.Limits = t.Spec.GPUs, t.Spec.Limits
	}
	for _, m := range a.o.Catalog.Models() {
		v := get(m.Metadata.Namespace)
		v.Functions++
		active, queued := a.o.Demand(m.FullName())
		v.Active += active + queued
	}
	for _, k := range a.o.Keys.List("") {
		get(k.Team)
	}
	items := []Team{}
	for name, t := range byName {
		if !x.sees(name) {
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
		if a.o.TeamUse != nil {
			t.TeamUse = a.o.TeamUse(name)
		}
		items = append(items, *t)
	}
	slices.SortFunc(items, func(p, q Team) int { return cmp.Compare(p.Name, q.Name) })
	return items, nil
}

func (a *API) team(x *exchange, res *httpserver.Response) *openai.Error {
	items, err := a.teams(x)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(items, func(t Team) bool { return t.Name == x.args[0] })
	if i < 0 {
		return notFound("The team " + x.args[0])
	}
	return say(res, 200, items[i])
}

func cold(t functions.Timeline) ColdStart {
	c := ColdStart{Timeline: t}
	if c.Phases == nil {
		c.Phases = []functions.Span{}
	}
	if t.State != functions.Ready && !t.State.Over() {
		c.ETA = seconds(t.Progress.ETA)
	}
	return c
}

func (a *API) coldStarts(x *exchange) ([]ColdStart, *openai.Error) {
	limit, ok := x.query.number("limit", 100, 1000)
	if !ok {
		return nil, openai.New(openai.InvalidValue, "limit is a number, at most 1000.").With("limit")
	}
	items := []ColdStart{}
	for _, t := range a.o.History.ColdStarts(1000) {
		if x.sees(teamOf(t.Function)) && len(items) < limit {
			items = append(items, cold(t))
		}
	}
	return items, nil
}

func (a *API) coldStart(x *exchange, res *httpserver.Response) *openai.Error {
	id := x.args[0]
	position, _, _ := a.o.Requests.Position(id)
	if of, ok := a.o.Requests.ColdStartOf(id); ok {
		id = of
	}
	t, ok := a.o.History.ColdStart(id)
	if !ok || !x.sees(teamOf(t.Function)) {
		return notFound("The cold start " + x.args[0])
	}
	c := cold(t)
	c.Position = position
	return say(res, 200, c)
}

func (a *API) events(x *exchange) ([]functions.Event, *openai.Error) {
	since, ok := x.query.number("since", 0, int(^uint(0)>>1))
	if !ok {
		return nil, openai.New(openai.InvalidValue, "since is the seq of an event.").With("since")
	}
	items := []functions.Event{}
	function, kind := x.query["function"], x.query["kind"]
	for _, e := range a.o.History.Events(uint64(since)) {
		if function != "" && e.Function != function || kind != "" && e.Kind != kind {
			continue
		}
		// What names no function is about the machines, which everybody sees.
		if e.Function == "" || x.sees(teamOf(e.Function)) {
			if e.For != "" && !x.sees(teamOf(e.For)) {
				e.For = "" // whom it made way for is another team's
			}
			items = append(items, e)
		}
	}
	return items, nil
}

// explainedEvents is how many events an explanation ends with.
const explainedEvents = 10

func (a *API) explain(x *exchange, res *httpserver.Response) *openai.Error {
	kind := x.args[0]
	if !slices.Contains(explainKinds, kind) {
		return openai.New(openai.NotFound, "What can be explained is "+strings.Join(explainKinds, ", ")+".")
	}
	x.args = x.args[1:]
	m, err := a.find(x)
	if err != nil {
		return err
	}
	v := functions.Explanation{Kind: kind, Function: m.FullName().String(), State: functions.Unloaded, Now: "Nothing is known of it yet."}
	if a.o.Explain != nil {
		if e, ok := a.o.Explain(kind, m.FullName()); ok {
			v = e
		}
	}
	if v.Candidates == nil {
		v.Candidates = []functions.Candidate{}
	}
	// What is another team's is told of as something, not by its name.
	if v.For != "" && !x.sees(teamOf(v.For)) {
		v.For = ""
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if c.Function == "" || x.sees(teamOf(c.Function)) {
			continue
		}
		if c.Replica != "" && c.Replica == v.Chosen {
			v.Chosen = ""
		}
		c.Function, c.Replica = "", ""
	}
	events, err := a.events(&exchange{Request: x.Request, caller: x.caller, query: query{"function": v.Function}})
	if err != nil {
		return err
	}
	v.Events = events[max(0, len(events)-explainedEvents):]
	return say(res, 200, v)
}

func (a *API) schema(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = functions.Schema()
	res.Set("content-type", "application/schema+json")
	return nil
}

func (a *API) keys(x *exchange, res *httpserver.Response) *openai.Error {
	keys := a.o.Keys.List(x.query["team"])
	if keys == nil {
		keys = []auth.Key{}
	}
	return say(res, 200, List[auth.Key]{keys})
}

func (a *API) createKey(x *exchange, res *httpserver.Response) *openai.Error {
	var k KeyRequest
	if err := take(x, &k); err != nil {
		return err
	}
	if k.Team == "" {
		k.Team = functions.DefaultTeam
	}
	if !functions.IsLabel(k.Team) {
		return openai.New(openai.InvalidValue, "A team is a DNS label: lower-case letters, digits and '-'.").With("team")
	}
	secret, key, err := a.o.Keys.Create(k.Team, k.Name, k.Admin)
	if err != nil {
		return openai.New(openai.InvalidValue, "The key was not made: "+err.Error())
	}
	a.o.Log.Info("key made", "id", key.ID, "team", key.Team, "admin", key.Admin)
	return say(res, 201, NewKey{Key: key, Secret: secret})
}

func (a *API) deleteKey(x *exchange, res *httpserver.Response) *openai.Error {
	err := a.o.Keys.Delete(x.args[0])
	if errors.Is(err, auth.ErrNoKey) {
		return notFound("The key " + x.args[0])
	}
	if err != nil {
		return openai.New(openai.InternalError, "The key was not ended: "+err.Error())
	}
	a.o.Log.Info("key ended", "id", x.args[0])
	res.Status = 204
	return nil
}

func (a *API) heartbeat(x *exchange, res *httpserver.Response) *openai.Error {
	if len(x.Body) > maxBody {
		return openai.New(openai.RequestTooLarge, "")
	}
	// Unknown fields pass: an agent may be newer than its server.
	var hb functions.Heartbeat
	if err := json.Unmarshal(x.Body, &hb); err != nil {
		return openai.New(openai.InvalidJSON, "The body is no heartbeat: "+err.Error())
	}
	if !isWord(hb.AgentID) {
		return openai.New(openai.InvalidValue, "An agent's id is letters, digits, '-', '_' and '.'.").With("agent_id")
	}
	switch err := a.o.Heartbeat(hb); {
	case errors.Is(err, functions.ErrStaleEpoch):
		return openai.New(openai.Conflict, err.Error())
	case err != nil:
		return openai.New(openai.InvalidValue, "The heartbeat is refused: "+err.Error())
	}
	reply := functions.HeartbeatReply{Peers: []functions.Peer{}}
	if a.o.Peers != nil {
		reply.Peers = append(reply.Peers, a.o.Peers(hb.AgentID)...)
	}
	return say(res, http.StatusOK, reply)
}

func (a *API) metrics(x *exchange, res *httpserver.Response) *openai.Error {
	families, err := a.o.Metrics.Gather()
	if err != nil && len(families) == 0 {
		return openai.New(openai.InternalError, "")
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if team := x.team(); team != "" {
			f.Metric = slices.DeleteFunc(f.Metric, func(m metric) bool { return !ofTeam(m, team) })
			if len(f.Metric) == 0 {
				continue
			}
		}
		if err := enc.Encode(f); err != nil {
			return openai.New(openai.InternalError, "")
		}
	}
	res.Body = b.Bytes()
	res.Set("content-type", string(format))
	return nil
}

// ofTeam: a metric that names another team, or a function of one, is not for
// this team's key.
func ofTeam(m metric, team string) bool {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "team":
			if l.GetValue() != team {
				return false
			}
		case "model", "function":
			if t, _, full := strings.Cut(l.GetValue(), "/"); full && t != team {
				return false
			}
		}
	}
	return true
}

func (a *API) healthz(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = []byte("ok\n")
	res.Set("content-type", "text/plain; charset=utf-8")
	return nil
}

func (a *API) readyz(x *exchange, res *httpserver.Response) *openai.Error {
	var r Readiness
	r.Reasons = a.o.Ready()
	if x.Draining() {
		r.Reasons = append(r.Reasons, "shutting down")
	}
	r.Ready = len(r.Reasons) == 0
	status := 200
	if !r.Ready {
		status = 503
	}
	if !x.known && !a.open() {
		r.Reasons = nil
	}
	return say(res, status, r)
}

func (a *API) openapi(_ *exchange, res *httpserver.Response) *openai.Error {
	res.Body = a.spec
	res.Set("content-type", "application/json")
	return nil
}
