package api

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// lookup returns the function of a name, if the caller may see it.
func (a *API) lookup(x *exchange, name functions.Name) (catalog.Document, *openai.Error) {
	d, ok := a.o.Catalog.Lookup(name)
	if !ok || !x.mayRead(name.Team) {
		names := functions.ConvertAll(a.documents(x), func(d catalog.Document) string { return d.FullName().String() })
		err := notFound("The function " + name.String())
		if nearest := functions.Nearest(name.String(), names, 3); len(nearest) > 0 {
			err.Message += " Did you mean " + strings.Join(nearest, ", ") + "?"
		}
		return d, err
	}
	return d, nil
}

// find returns the model of a name, if the caller may see it.
func (a *API) find(x *exchange, name functions.Name) (*functions.Model, *openai.Error) {
	d, err := a.lookup(x, name)
	if err == nil && d.Model == nil {
		err = openai.New(openai.InvalidValue, d.FullName().String()+" is a "+d.Kind()+": it has no replicas that start and stop.")
	}
	return d.Model, err
}

func (a *API) view(d catalog.Document) Function {
	name := d.FullName()
	f := Function{Name: name.String(), Team: name.Team, Model: name.Name, Kind: d.Kind(), State: functions.Ready}
	f.Active, f.Queued = a.o.Demand(name)
	if f.Queued > 0 && a.o.Oldest != nil {
		if at := a.o.Oldest(name); !at.IsZero() {
			f.Waiting = &at
		}
	}
	switch {
	case d.Model != nil:
		a.viewModel(&f, d.Model)
	case d.Router != nil:
		f.Origin = d.Router.Origin
	case d.Remote != nil:
		f.Origin, f.Source = d.Remote.Origin, d.Remote.Spec.URL
		if a.o.RemoteState != nil {
			f.State, f.Problem = a.o.RemoteState(name)
		}
		if a.o.Spending != nil {
			f.Spent = a.o.Spending.SpentToday(name)
		}
	case d.Composition != nil:
		f.Origin = d.Composition.Origin
	}
	if f.Problem == "" && a.o.FileProblem != nil {
		f.Problem = a.o.FileProblem(name)
	}
	return f
}

func (a *API) viewModel(f *Function, m *functions.Model) {
	name := m.FullName()
	f.State, f.Engine, f.Source, f.Origin = functions.Unloaded, m.Spec.Engine, m.Spec.Source, m.Origin
	now, ok := a.o.State.Function(name)
	if !ok {
		return
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
		f.ColdStart, f.Bytes = now.ColdStart.ID, max(now.ColdStart.Bytes, now.ColdStart.Progress.Total)
	}
	switch {
	case now.Failure != nil:
		f.Problem = now.Failure.Reason
		if f.State == functions.Unloaded {
			f.State = functions.Failed
		}
	case now.Blocked != nil:
		f.Problem = cmp.Or(now.Blocked.Message, strings.ReplaceAll(now.Blocked.Code, "_", " "))
		if f.Replicas == 0 {
			f.Blocked, f.Final = now.Blocked.Code, now.Blocked.Final
		}
	}
}

// unmet says why none of the nodes that are there could ever hold a function; "" where one
// could.
func (a *API) unmet(d catalog.Document) string {
	if d.Model == nil {
		return ""
	}
	return d.Model.Spec.Resources.Unmet(a.o.State.Nodes())
}

func (a *API) functions(x *exchange) ([]Function, *openai.Error) {
	return functions.ConvertAll(a.documents(x), a.view), nil
}

// documents returns the functions that the caller may see.
func (a *API) documents(x *exchange) []catalog.Document {
	return readable(x, a.o.Catalog.Documents(), func(d catalog.Document) string { return d.FullName().Team })
}

func (a *API) function(x *exchange, res *httpserver.Response) *openai.Error {
	d, err := a.lookup(x, x.name())
	if err != nil {
		return err
	}
	f := a.view(d)
	if f.Replicas == 0 {
		f.Problem = cmp.Or(f.Problem, a.unmet(d))
	}
	x.addSpec(&f, d)
	return writeJSON(res, f)
}

// addSpec adds the spec of d to its view, as the caller may see it. Where the server reads
// the key of a Remote only admins see.
func (c caller) addSpec(f *Function, d catalog.Document) {
	switch {
	case d.Model != nil:
		f.Spec = c.spec(d.Model)
	case d.Router != nil:
		f.Router = &d.Router.Spec
	case d.Remote != nil:
		spec := d.Remote.Spec
		if !c.isAdmin() {
			spec.KeyFrom = functions.KeyFrom{}
		}
		f.Remote = &spec
	case d.Composition != nil:
		f.Composition = &d.Composition.Spec
	}
}

func (c caller) isAdmin() bool { return c.authenticated && c.id.Admin }

const hiddenEnv = "(hidden)"

// spec of a model as the caller may see it. What an engine's environment holds
// is often a secret: only admins see it.
func (c caller) spec(m *functions.Model) *functions.ModelSpec {
	if c.isAdmin() || len(m.Spec.Env) == 0 {
		return &m.Spec
	}
	spec := m.Spec
	spec.Env = make(map[string]string, len(m.Spec.Env))
	for name := range m.Spec.Env {
		spec.Env[name] = hiddenEnv
	}
	return &spec
}

// maxBeside bounds the names of a dry run.
const maxBeside = 256

func (a *API) deploy(x *exchange, res *httpserver.Response) *openai.Error {
	name := x.name()
	if !functions.IsLabel(name.Team) || !functions.IsLabel(name.Name) {
		return openai.New(openai.InvalidValue, "Team and name are DNS labels: lower-case letters, digits and '-'.")
	}
	if len(x.Body) > catalog.MaxFile {
		return openai.New(openai.RequestTooLarge, "A file of a function is at most "+functions.Bytes(catalog.MaxFile).Human()+".")
	}
	beside, ok := x.query.names("beside")
	dry := x.query.on("dryRun")
	if !ok || len(beside) > 0 && !dry {
		return openai.New(openai.InvalidValue, "beside is names of functions, TEAM/NAME,TEAM/NAME, and goes with dryRun.").With("beside")
	}
	checked, err := a.o.Catalog.Check(name, x.Body, beside...)
	file, sized := x.Body, ""
	if err == nil {
		file, sized, err = a.size(x, checked.Document)
	}
	unchanged := err == nil && a.isDeployed(name, checked.Document)
	if err == nil && !dry && !unchanged {
		checked.Created, err = a.o.Catalog.Put(name, file)
	}
	if err != nil {
		return catalogFailure(err)
	}
	doc := checked.Document
	if kept, ok := a.o.Catalog.Lookup(name); ok && !dry {
		doc = kept
	}
	d := DeployReply{Function: a.view(doc), Created: checked.Created, DryRun: dry, Unchanged: unchanged, Warnings: checked.Warnings,
		Sized: sized, Unmet: a.unmet(doc)}
	x.addSpec(&d.Function, doc)
	if d.Created && !dry {
		res.Status = 201
	}
	return writeJSON(res, d)
}

// isDeployed reports whether a function says what doc says already.
func (a *API) isDeployed(name functions.Name, doc catalog.Document) bool {
	kept, ok := a.o.Catalog.Lookup(name)
	if !ok || kept.Kind() != doc.Kind() {
		return false
	}
	was, err := catalog.EncodeYAML(kept.Value())
	now, err2 := catalog.EncodeYAML(doc.Value())
	return err == nil && err2 == nil && bytes.Equal(was, now)
}

// size works out the resources of a model whose file leaves them out, and returns the file
// with them. A model that chooses none of several sets of weights is an error.
func (a *API) size(x *exchange, doc catalog.Document) (file []byte, text string, err error) {
	if doc.Model != nil && a.o.CheckWeights != nil {
		if err := a.o.CheckWeights(x.Context(), doc.Model); err != nil {
			return nil, "", catalog.Problems{{Path: "spec.weights", Message: err.Error()}}
		}
	}
	if doc.Model == nil || a.o.Size == nil {
		return x.Body, "", nil
	}
	resources, text := a.o.Size(x.Context(), doc.Model)
	if resources == doc.Model.Spec.Resources {
		return x.Body, text, nil
	}
	doc.Model.Spec.Resources = resources
	file, err = catalog.EncodeYAML(doc.Value())
	return file, text, err
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
	return nil
}

// leastLease is that of a wake that names none, where the model's idle time is
// shorter.
const leastLease = time.Minute

// maxLease bounds a wake without demand; scale.min keeps a model for longer.
const maxLease = 7 * 24 * time.Hour

func (a *API) wake(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x, x.name())
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
	lease = cmp.Or(lease, max(m.Spec.Scale.Idle.Std(), leastLease))
	name := m.FullName()
	if name.Adapter = w.Adapter; w.Adapter != "" &&
		!slices.ContainsFunc(m.Spec.Adapters, func(x functions.Adapter) bool { return x.Name == w.Adapter }) {
		return openai.New(openai.AdapterNotFound,
			"The model "+m.FullName().String()+" has no adapter "+functions.Clip(w.Adapter)+".").With("adapter")
	}
	if w.Adapter != "" && a.o.AdaptersByRequest {
		return openai.New(openai.InvalidValue,
			"Here an adapter is loaded by the first request that names it: wake "+m.FullName().String()+" without it.").With("adapter")
	}
	id := a.o.Starter.WakeFor(name, lease)
	f := a.view(catalog.Document{Model: m})
	if f.State == functions.Ready {
		id = ""
	}
	return writeJSON(res, WakeReply{Function: f.Name, State: f.State, ColdStart: id})
}

func (a *API) stop(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := a.find(x, x.name())
	if err != nil {
		return err
	}
	a.o.Starter.Stop(m.FullName())
	f := a.view(catalog.Document{Model: m})
	if !f.State.Over() { // it has been told to go, though it has not heard yet
		f.State = functions.Draining
	}
	return writeJSON(res, WakeReply{Function: f.Name, State: f.State})
}
