package api

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// find returns the model that a path names, if the caller may see it.
func (a *API) find(x *exchange) (*functions.Model, *openai.Error) {
	name := x.name()
	m := a.o.Catalog.Model(name)
	if m == nil || !x.mayRead(name.Team) {
		var names []string
		for _, m := range a.o.Catalog.Models() {
			if x.mayRead(m.Metadata.Namespace) {
				names = append(names, m.FullName().String())
			}
		}
		err := notFound("The function " + name.String())
		if nearest := functions.Nearest(name.String(), names, 3); len(nearest) > 0 {
			err.Message += " Did you mean " + strings.Join(nearest, ", ") + "?"
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
	now, ok := a.o.State.Function(name)
	if !ok {
		return f
	}
	f.State = cmp.Or(now.State, functions.Unloaded)
	f.Replicas = len(now.Replicas)
	if now.Starting() {
		f.Percent, f.ETA = positivePtr(now.Progress.Percent), optionalSeconds(now.Progress.ETA)
	}
	if now.Forecast.P50 > 0 {
		f.Expected = optionalSeconds(now.Forecast.P50)
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
		f.Problem = cmp.Or(now.Blocked.Message, blockedReason(now.Blocked))
	}
	return f
}

func blockedReason(b *snapshot.Blocked) string { return strings.ReplaceAll(b.Code, "_", " ") }

func (a *API) functions(x *exchange) ([]Function, *openai.Error) {
	items := []Function{}
	for _, m := range a.o.Catalog.Models() {
		if x.mayRead(m.Metadata.Namespace) {
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
	return writeJSON(res, 200, f)
}

// hiddenEnv stands for a value that the caller may not see.
const hiddenEnv = "(hidden)"

// spec of a model as the caller may see it. What an engine's environment holds
// is often a secret: only admins see it.
func (c caller) spec(m *functions.Model) *functions.ModelSpec {
	if c.authenticated && c.id.Admin || len(m.Spec.Env) == 0 {
		return &m.Spec
	}
	spec := m.Spec
	spec.Env = make(map[string]string, len(m.Spec.Env))
	for name := range m.Spec.Env {
		spec.Env[name] = hiddenEnv
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
		return catalogFailure(err)
	}
	if kept := a.o.Catalog.Model(name); kept != nil && !dry {
		m = kept
	}
	d := DeployReply{Function: a.view(m), Created: created, DryRun: dry}
	d.Spec = &m.Spec
	status := 200
	if created && !dry {
		status = 201
	}
	return writeJSON(res, status, d)
}

// catalogFailure is the catalog's error on the wire.
func catalogFailure(err error) *openai.Error {
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
		return catalogFailure(err)
	}
	res.Status = 204
	return nil
}

// leastLease is that of a wake that names none, where the model's idle time is
// shorter.
const leastLease = time.Minute

// maxLease bounds a wake without demand; scale.min keeps a model for longer.
const maxLease = 7 * 24 * time.Hour

func (a *API) wake(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x)
	if err != nil {
		return err
	}
	var w WakeRequest
	if err := decodeBody(x, &w); err != nil {
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
	if w.Adapter != "" && a.o.AdaptersByRequest {
		return openai.New(openai.InvalidValue, "Here an adapter is loaded by the first request that names it: wake "+m.FullName().String()+" without it.").With("adapter")
	}
	id := a.o.Starter.WakeFor(name, lease)
	f := a.view(m)
	if f.State == functions.Ready {
		id = ""
	}
	return writeJSON(res, 202, WakeReply{Function: f.Name, State: f.State, ColdStart: id})
}

func (a *API) stop(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x)
	if err != nil {
		return err
	}
	a.o.Starter.Stop(m.FullName())
	f := a.view(m)
	if !f.State.Over() { // it has been told to go, though it has not heard yet
		f.State = functions.Draining
	}
	return writeJSON(res, 202, WakeReply{Function: f.Name, State: f.State})
}
