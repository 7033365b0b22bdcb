package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// Functions is what the functions are shown with and changed by.
type Functions struct {
	Starter Starter
	// AdaptersByRequest: only a request that names an adapter loads it, so a wake
	// with an adapter is refused.
	AdaptersByRequest bool
	// RemoteState is Ready, or Failed with the reason, of a Remote; nil: always Ready.
	RemoteState func(name functions.Name) (state functions.State, problem string)
	// FileProblem is why the file of a function cannot be used as it is now, while its version
	// before serves on; "" if it can. nil: there are no files.
	FileProblem func(name functions.Name) string
	Sizer       Sizer // nil: resources are never worked out
}

// Sizer looks at the weights of a model that is deployed.
type Sizer interface {
	// CheckWeights returns an error for a model whose source holds several sets of weights
	// of which it chooses none.
	CheckWeights(ctx context.Context, m *functions.Model) error
	// CheckGPUs returns an error for a model whose GPUs cannot share its attention heads.
	CheckGPUs(ctx context.Context, m *functions.Model) error
	// Size returns the resources of a model whose file leaves them out, and a sentence about
	// it; those it has, where it does not.
	Size(ctx context.Context, m *functions.Model) (functions.Resources, string)
}

// functionHandlers answers for the functions of all kinds.
type functionHandlers struct {
	Platform
	Functions
}

// lookup returns the function of a name, if the caller may see it.
func (f *functionHandlers) lookup(x *exchange, name functions.Name) (catalog.Document, *openai.Error) {
	d, ok := f.Catalog.Lookup(name)
	if !ok || !x.mayRead(name.Team) {
		names := functions.ConvertAll(f.documents(x), func(d catalog.Document) string { return d.FullName().String() })
		err := notFound("The function " + name.String())
		if nearest := functions.Nearest(name.String(), names, 3); len(nearest) > 0 {
			err.Message += " Did you mean " + strings.Join(nearest, ", ") + "?"
		}
		return d, err
	}
	return d, nil
}

// find returns the model of a name, if the caller may see it.
func (f *functionHandlers) find(x *exchange, name functions.Name) (*functions.Model, *openai.Error) {
	d, err := f.lookup(x, name)
	if err == nil && d.Model == nil {
		err = openai.New(openai.InvalidValue, d.FullName().String()+" is a "+d.Kind()+": it has no replicas that start and stop.")
	}
	return d.Model, err
}

func (f *functionHandlers) view(d catalog.Document) Function {
	name := d.FullName()
	v := Function{Name: name.String(), Team: name.Team, Model: name.Name, Kind: d.Kind(), State: functions.Ready}
	var oldest time.Time
	if v.Active, v.Queued, oldest = f.Demand(name); v.Queued > 0 && !oldest.IsZero() {
		v.Waiting = &oldest
	}
	switch {
	case d.Model != nil:
		f.viewModel(&v, d.Model)
	case d.Router != nil:
		v.Origin = d.Router.Origin
	case d.Remote != nil:
		v.Origin, v.Source = d.Remote.Origin, d.Remote.Spec.URL
		if f.RemoteState != nil {
			v.State, v.Problem = f.RemoteState(name)
		}
		if f.Spending != nil {
			v.Spent = f.Spending.SpentToday(name)
		}
	case d.Composition != nil:
		v.Origin = d.Composition.Origin
	}
	if v.Problem == "" && f.FileProblem != nil {
		v.Problem = f.FileProblem(name)
	}
	return v
}

func (f *functionHandlers) viewModel(v *Function, m *functions.Model) {
	name := m.FullName()
	v.State, v.Engine, v.Source, v.Origin = functions.Unloaded, m.Spec.Engine, m.Spec.Source, m.Origin
	now, ok := f.State.Function(name)
	if !ok {
		return
	}
	v.State = cmp.Or(now.State, functions.Unloaded)
	v.Replicas = len(now.Replicas)
	if now.Starting() {
		v.Percent, v.ETA = positivePtr(now.Progress.Percent), optionalSeconds(now.Progress.ETA)
	}
	if now.Forecast.P50 > 0 {
		v.Expected = optionalSeconds(now.Forecast.P50)
	}
	if now.ColdStart != nil {
		v.ColdStart, v.Bytes = now.ColdStart.ID, max(now.ColdStart.Bytes, now.ColdStart.Progress.Total)
	}
	switch t := now.ColdStart; {
	case now.Starting() && t != nil && t.Problem() != "":
		v.Problem = t.Problem()
	case now.Failure != nil:
		v.Problem = now.Failure.Reason
		if v.State == functions.Unloaded {
			v.State = functions.Failed
		}
	case now.Blocked != nil:
		v.Problem = cmp.Or(now.Blocked.Message, strings.ReplaceAll(now.Blocked.Code, "_", " "))
		if v.Replicas == 0 {
			v.Blocked, v.Final = now.Blocked.Code, now.Blocked.Final
		}
	}
}

// unmet says why none of the nodes that are there could ever hold a function; "" where one
// could.
func (f *functionHandlers) unmet(d catalog.Document) string {
	if d.Model == nil {
		return ""
	}
	return d.Model.Spec.Resources.Unmet(f.State.Nodes())
}

func (f *functionHandlers) functions(x *exchange) ([]Function, *openai.Error) {
	return functions.ConvertAll(f.documents(x), f.view), nil
}

// documents returns the functions that the caller may see.
func (f *functionHandlers) documents(x *exchange) []catalog.Document {
	return readable(x, f.Catalog.Documents(), func(d catalog.Document) string { return d.FullName().Team })
}

func (f *functionHandlers) function(x *exchange, res *httpserver.Response) *openai.Error {
	d, err := f.lookup(x, x.name())
	if err != nil {
		return err
	}
	v := f.view(d)
	if v.Replicas == 0 {
		v.Problem = cmp.Or(v.Problem, f.unmet(d))
	}
	x.addSpec(&v, d)
	return writeJSON(res, v)
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

func (f *functionHandlers) deploy(x *exchange, res *httpserver.Response) *openai.Error {
	name := x.name()
	if !functions.IsLabel(name.Team) || !functions.IsLabel(name.Name) {
		return openai.New(openai.InvalidValue,
			"`"+functions.Clip(name.String())+"` is no TEAM/NAME: both are DNS labels of lower-case letters, digits and '-'.")
	}
	if len(x.Body) > catalog.MaxFile {
		return openai.New(openai.RequestTooLarge, "A file of a function is at most "+functions.Bytes(catalog.MaxFile).Human()+".")
	}
	beside, ok := x.query.names("beside")
	dry := x.query.on("dryRun")
	if !ok || len(beside) > 0 && !dry {
		return openai.New(openai.InvalidValue, "beside is names of functions, TEAM/NAME,TEAM/NAME, and goes with dryRun.").With("beside")
	}
	checked, err := f.Catalog.Check(name, x.Body, beside...)
	file, sized := x.Body, ""
	if err == nil {
		file, sized, err = f.size(x, checked.Document)
	}
	unchanged := err == nil && f.isDeployed(name, checked.Document)
	if err == nil && !dry && !unchanged {
		checked.Created, err = f.Catalog.Put(name, file)
	}
	if err != nil {
		return catalogFailure(err)
	}
	if m := checked.Model; m != nil && f.Sizer != nil {
		checked.Warnings = append(checked.Warnings, catalog.WarningsAt("", 0, loader.MissingFolders(m))...)
	}
	doc := checked.Document
	if kept, ok := f.Catalog.Lookup(name); ok && !dry {
		doc = kept
	}
	d := DeployReply{Function: f.view(doc), Created: checked.Created, DryRun: dry, Unchanged: unchanged, Warnings: checked.Warnings,
		Sized: sized, Unmet: f.unmet(doc)}
	x.addSpec(&d.Function, doc)
	if d.Created && !dry {
		res.Status = 201
	}
	return writeJSON(res, d)
}

// isDeployed reports whether a function says what doc says already.
func (f *functionHandlers) isDeployed(name functions.Name, doc catalog.Document) bool {
	kept, ok := f.Catalog.Lookup(name)
	if !ok || kept.Kind() != doc.Kind() {
		return false
	}
	was, err := catalog.EncodeYAML(kept.Value())
	now, err2 := catalog.EncodeYAML(doc.Value())
	return err == nil && err2 == nil && bytes.Equal(was, now)
}

// size works out the resources of a model whose file leaves them out, and returns the file
// with them. A model that chooses none of several sets of weights is an error.
func (f *functionHandlers) size(x *exchange, doc catalog.Document) (file []byte, text string, err error) {
	if doc.Model == nil || f.Sizer == nil {
		return x.Body, "", nil
	}
	if err := f.Sizer.CheckWeights(x.Context(), doc.Model); err != nil {
		return nil, "", catalog.Problems{{Path: "spec.weights", Message: err.Error()}}
	}
	if err := f.Sizer.CheckGPUs(x.Context(), doc.Model); err != nil {
		return nil, "", catalog.Problems{{Path: "spec.resources.gpus", Message: err.Error()}}
	}
	resources, text := f.Sizer.Size(x.Context(), doc.Model)
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

func (f *functionHandlers) remove(x *exchange, res *httpserver.Response) *openai.Error {
	if err := f.Catalog.Delete(x.name()); err != nil {
		return catalogFailure(err)
	}
	return nil
}

// leastLease is that of a wake that names none, where the model's idle time is
// shorter.
const leastLease = time.Minute

// maxLease bounds a wake without demand; scale.min keeps a model for longer.
const maxLease = 7 * 24 * time.Hour

func (f *functionHandlers) wake(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := f.find(x, x.name())
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
	if w.Adapter != "" && f.AdaptersByRequest {
		return openai.New(openai.InvalidValue,
			"Here an adapter is loaded by the first request that names it: wake "+m.FullName().String()+" without it.").With("adapter")
	}
	id := f.Starter.WakeFor(name, lease)
	v := f.view(catalog.Document{Model: m})
	if v.State == functions.Ready {
		id = ""
	}
	return writeJSON(res, WakeReply{Function: v.Name, State: v.State, ColdStart: id})
}

func (f *functionHandlers) stop(x *exchange, res *httpserver.Response) *openai.Error {
	m, err := f.find(x, x.name())
	if err != nil {
		return err
	}
	f.Starter.Stop(m.FullName())
	v := f.view(catalog.Document{Model: m})
	if !v.State.Over() { // it has been told to go, though it has not heard yet
		v.State = functions.Draining
	}
	return writeJSON(res, WakeReply{Function: v.Name, State: v.State})
}
