// Package routes connects Routers to the activator: it finds the data class of a request, gives
// package router each target's state, expected time and cost (but no Remote that may not get such
// data), keeps the newest decisions in memory, and asks to start functions that were passed over as
// cold.
//
// It holds no request and no queue, so the API and the data path share it.
package routes

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/router"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Set is the Routers and the classes of data of the teams. It is immutable; a nil one is
// empty.
type Set struct {
	byName map[functions.Name]*Route
	sorted []*Route // by team and name
	data   map[string]functions.DataClass
}

// Route is one compiled Router.
type Route struct {
	Name    functions.Name
	Spec    *functions.Router
	decider *router.Router

	remembers atomic.Bool // see [Route.Remember]
}

// HasRulesOf reports whether r, which may be nil, has the rules of another by name and targets.
func (r *Route) HasRulesOf(other *Route) bool {
	return r != nil && slices.EqualFunc(r.Spec.Spec.Rules, other.Spec.Spec.Rules, func(a, b functions.Rule) bool {
		return a.Name == b.Name && slices.Equal(a.To, b.To)
	})
}

// NewSet compiles Routers. Those that before has compiled already are reused: a document
// is never changed in place. One that does not compile is logged and left out. data are
// the classes of data that teams have set.
func NewSet(before *Set, routers []*functions.Router, data map[string]functions.DataClass, log *slog.Logger) *Set {
	s := &Set{byName: make(map[functions.Name]*Route, len(routers)), data: data}
	for _, r := range routers {
		name := r.FullName()
		if old := before.Find(name); old != nil && old.Spec == r {
			s.byName[name] = old
			continue
		}
		d, err := router.Compile(r)
		if err != nil {
			log.Error("a Router cannot be used", "router", name.String(), "error", err)
			continue
		}
		s.byName[name] = &Route{Name: name, Spec: r, decider: d}
	}
	s.sorted = slices.SortedFunc(maps.Values(s.byName), func(a, b *Route) int { return a.Name.Compare(b.Name) })
	return s
}

// Find returns the Router of this name; nil where there is none.
func (s *Set) Find(name functions.Name) *Route {
	if s == nil || name.Adapter != "" {
		return nil
	}
	return s.byName[name]
}

// Auto is the Router of the default team that "auto" means to a team without one of its
// own; nil where there is none.
func (s *Set) Auto() *Route {
	return s.Find(functions.Name{Team: functions.DefaultTeam, Name: functions.AutoRouter})
}

// All Routers by team and name. The slice must not be changed.
func (s *Set) All() []*Route {
	if s == nil {
		return nil
	}
	return s.sorted
}

func (s *Set) Names(team string) (names []string) {
	for _, r := range s.All() {
		if r.Name.Team == team {
			names = append(names, r.Name.Name)
		}
	}
	return names
}

// Unknown is the answer about a Router that does not exist, or that the team may not use.
func (s *Set) Unknown(asked, team string) *openai.Error {
	text := "The Router `" + functions.Clip(asked) + "` does not exist, or this key may not use it."
	names := s.Names(team)
	if s.Auto() != nil && !slices.Contains(names, functions.AutoRouter) {
		names = append(names, functions.AutoRouter)
	}
	if nearest := functions.Nearest(asked, names, 3); len(nearest) > 0 {
		text += " Nearest: `" + strings.Join(nearest, "`, `") + "`."
	} else if len(names) == 0 {
		text += " There is none yet: thaw deploy -f FILE adds one."
	}
	return openai.New(openai.NotFound, text).With("router")
}

// Class is the class of the data of a request: that of the Router (nil: the function is
// requested by its own name), else that of the team, else internal. A Router of another
// team does not lower what the request's own team has set. The header thaw-data raises
// the class and never lowers it.
func (s *Set) Class(r *Route, team, header string) (functions.DataClass, *openai.Error) {
	var own, class functions.DataClass
	if s != nil {
		own = s.data[team]
	}
	if r != nil {
		class = r.Spec.Spec.Data
		if class != "" && r.Name.Team != team && own != "" && own.Rank() > class.Rank() {
			class = own
		}
	}
	class = cmp.Or(class, own, functions.DataInternal)
	if header == "" {
		return class, nil
	}
	raised := functions.DataClass(header)
	if !slices.Contains(functions.DataClasses, raised) {
		return class, openai.New(openai.InvalidValue,
			"The header thaw-data is public, internal or secret, not `"+functions.Clip(header)+"`.").With("thaw-data")
	}
	if raised.Rank() > class.Rank() {
		class = raised
	}
	return class, nil
}

// RefuseData is the answer to a request whose data may not be sent to a Remote.
func RefuseData(r *functions.Remote, class functions.DataClass) *openai.Error {
	return openai.New(openai.DataClassRefused, fmt.Sprintf("The data of this request is `%s`, and the Remote `%s` takes `%s`: "+
		"set `data: %[3]s` on the Router or the team, or `allow: %[1]s` on the Remote. A header thaw-data only raises the class.",
		class, r.FullName().Short(), cmp.Or(r.Spec.Allow, functions.DataPublic)))
}

// Function is what a decision knows of one function.
type Function struct {
	Snapshot *snapshot.Snapshot
	Load     admission.Load
	Pace     *Pace
	Refusal  *openai.Error // the answer of a Remote that takes no request now; else nil

	GPUHourPrice float64                // of a model without a price; 0 unknown
	Composition  *functions.Composition // it is one, without Snapshot and Load; else nil
	Router       bool                   // it is one, a member of a Composition, with nothing else
}

// Request is what a Router is to choose a function for. It is used by one goroutine.
type Request struct {
	ID, ClientID string
	Team         string // of the caller
	Admin        bool   // the caller may use the functions of all teams
	Features     functions.RouteFeatures
	Header       func(name string) string
	Cold         functions.ColdPolicy // "" is the Router's
	Data         functions.DataClass
	MaxTokens    int64          // of the answer; 0: not set
	Sent         bool           // a model or a Remote was given the request
	Typed        *intents.Typed // see router.Input
	// Find returns a function by its name without an adapter; false: there is none.
	Find func(functions.Name) (Function, bool)
	Now  time.Time

	// Hashed is the body, where [Route.Read] has hashed it.
	Hashed cache.Body

	envelope *openai.Envelope
	body     []byte
	path     string            // of the endpoint
	answers  int               // that it asks for
	depth    int               // Compositions whose parts are looked at
	after    string            // the target that failed the request last
	failed   map[string]string // why targets failed it
	refused  []*openai.Error   // answers of targets that the last decision refused
}

// ReadHeaders reads the class of data and the policy for cold functions of a request that
// goes to r.
func (s *Set) ReadHeaders(q *Request, r *Route) (e *openai.Error) {
	if e = cache.CheckHeader(q.Header(cache.Header)); e != nil {
		return e
	}
	if q.Data, e = s.Class(r, q.Team, q.Header("thaw-data")); e != nil {
		return e
	}
	q.Cold = functions.ColdPolicy(q.Header("thaw-cold"))
	return admission.CheckHeaders(q.Header)
}

// shortHash is a hash of 16 hex digits, the same in all activators.
func shortHash(s string) string {
	h := uint64(14695981039346656037) // FNV-1a
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return fmt.Sprintf("%016x", h)
}

// Read fills in the features of a request's body. A dry run notes nothing.
func (r *Route) Read(q *Request, env *openai.Envelope, body []byte, path string, seen *Families, dry bool) {
	q.Features = r.features(q, env, body, path, &seen.readings)
	if s := q.Header("thaw-session"); s != "" {
		q.Features.Session = shortHash(q.Team + "\x00" + s)
	}
	if f := q.Features.PromptFamily; f != "" {
		q.Features.RepeatedPrefix = seen.look(q.Team, f, q.Now, !dry)
	}
	q.MaxTokens, q.path, q.answers = env.MaxTokens, path, env.N
	q.envelope, q.body = env, body
}

// Choose decides. The record's target is "" where no candidate is eligible; Refusal is
// the answer then.
func (r *Route) Choose(q *Request) functions.RouteRecord {
	q.refused = q.refused[:0]
	rec := r.decider.Decide(router.Input{Features: q.Features, Typed: q.Typed, Header: q.Header, Cold: q.Cold, Data: q.Data},
		func(target string) functions.RouteCandidate { return r.candidate(q, target) },
		func() []byte { return router.Text(q.envelope, q.body, q.path) })
	rec.ID, rec.Time = q.ID, q.Now.UTC().Format(time.RFC3339Nano)
	rec.After = q.after
	rec.Cache = cmp.Or(rec.Cache, "off")
	return rec
}

// Fail notes that a target failed the request before the first byte of an answer: no
// later decision about the request takes it.
func (r *Request) Fail(target, reason string) {
	if r.failed == nil {
		r.failed = map[string]string{}
	}
	r.after, r.failed[target] = target, reason
}

// Target is the function that a rule's target means: of the caller's team where a function
// of that name exists there, else of the Router's.
func (r *Route) Target(q *Request, target string) (functions.Name, Function, bool) {
	own, err := functions.ParseName(target, q.Team)
	if err != nil {
		return functions.Name{}, Function{}, false
	}
	f, ok := q.Find(own.WithoutAdapter())
	if !ok && q.Team != r.Name.Team {
		name, err := functions.ParseName(target, r.Name.Team)
		if err != nil || name == own {
			return own, f, false
		}
		f, ok = q.Find(name.WithoutAdapter())
		return name, f, ok
	}
	return own, f, ok
}

// candidate is the present state of a target.
func (r *Route) candidate(q *Request, target string) functions.RouteCandidate {
	c := functions.RouteCandidate{Name: target, ExpectedMS: -1, Cost: -1}
	refuse := func(why string, e *openai.Error) functions.RouteCandidate {
		c.WhyNot = why
		q.refused = append(q.refused, e)
		return c
	}
	name, f, ok := r.Target(q, target)
	if !ok || name.Team != q.Team && !q.Admin {
		return refuse("it does not exist, or the caller may not use it", openai.New(openai.ModelNotFound, ""))
	}
	switch {
	case f.Router && q.depth == 0:
		return refuse("a Router is no target", openai.New(openai.ModelNotFound, ""))
	case f.Router:
		c.Kind, c.State = functions.KindRouter, functions.Ready.Word()
		return c
	case f.Composition != nil && name.Adapter != "":
		return refuse("a Composition has no adapters", openai.New(openai.AdapterNotFound, ""))
	case f.Composition != nil:
		var why string
		var e *openai.Error
		if c, why, e = r.composed(q, c, f); e != nil {
			return refuse(why, e)
		}
		return c
	}
	s := f.Snapshot
	c.Kind, c.State = functions.KindModel, f.state(q.Now)
	if s.Remote != nil {
		c.Kind = functions.KindRemote
	}
	if name.Adapter != "" && !s.DeclaresAdapter(name.Adapter) {
		return refuse("the adapter does not exist", openai.New(openai.AdapterNotFound, ""))
	}
	if r := s.Remote; r != nil && !r.Allows(q.Data) {
		return refuse("the data is "+string(q.Data)+", and it takes "+string(cmp.Or(r.Spec.Allow, functions.DataPublic)), RefuseData(r, q.Data))
	}
	if d := f.expected(q.Now); d >= 0 {
		c.ExpectedMS = float64(d.Microseconds()) / 1000
	}
	c.Cost = f.cost(q.Features.TokenCount, q.MaxTokens)
	if reason := q.failed[target]; reason != "" {
		return refuse("it failed this request: "+reason, openai.New(openai.EngineCrashed, ""))
	}
	if why, e := f.closed(q.Now); e != nil {
		return refuse(why, e)
	}
	return c
}

// Refusal answers a request that no candidate of the matching rule is eligible for: with
// the first error after which a retry may help, else with the first one.
func (r *Route) Refusal(q *Request, rec *functions.RouteRecord) *openai.Error {
	if len(q.refused) == 0 {
		return openai.New(openai.ServiceUnavailable, "No rule of the Router `"+r.Name.Short()+"` has a target for this request.")
	}
	e := q.refused[max(0, slices.IndexFunc(q.refused, (*openai.Error).ShouldRetry))]
	if e.Code == openai.DataClassRefused {
		return e
	}
	text := "The Router `" + r.Name.Short() + "` has no target for this request (rule `" + rec.Rule + "`): "
	var reasons []string
	for _, c := range rec.Candidates {
		if c.WhyNot != "" {
			reasons = append(reasons, "`"+c.Name+"`: "+c.WhyNot)
		}
	}
	text += strings.Join(reasons, "; ") + "."
	switch {
	case e.Code == openai.InsufficientQuota: // a reason is the first sentence; the second has the time
		if _, renews, found := strings.Cut(e.Message, ". "); found {
			text += " " + renews
		}
	case e.Code != openai.ModelNotFound && e.Code != openai.AdapterNotFound:
	case r.Name.Team != q.Team:
		text += fmt.Sprintf(" The team `%s` needs a function of one of these names, or a Router `%s` of its own.", q.Team, r.Name.Name)
	default:
		text += " Deploy one of them, or give the rule other targets."
	}
	out := *e
	out.Message, out.Param = text, ""
	return &out
}

// Header is the value of the header thaw-route. names are those that the caller's team
// uses.
func Header(rec *functions.RouteRecord, team string) string {
	var b strings.Builder
	b.Grow(160)
	add := func(key, value string) {
		if value == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(key)
		b.WriteByte('=')
		b.WriteString(value)
	}
	name := rec.Router
	if n, err := functions.ParseName(rec.Router, team); err == nil && n.Team == team {
		name = n.Short()
	}
	add("router", name)
	add("rule", rec.Rule)
	add("target", rec.Target)
	add("stage", string(rec.Stage))
	add("cache", rec.Cache)
	add("state", StateOf(rec))
	add("prewarm", rec.Prewarm)
	add("after", rec.After)
	return b.String()
}

// StateOf is the state of the target of a record; "" where there is none.
func StateOf(rec *functions.RouteRecord) string {
	if i := slices.IndexFunc(rec.Candidates, func(c functions.RouteCandidate) bool { return c.Name == rec.Target }); i >= 0 {
		return rec.Candidates[i].State
	}
	return ""
}

// MayEscalate reports whether another target may answer a request that ended with e before
// a byte of an answer: not where the request itself is at fault, or the server ends.
func MayEscalate(e *openai.Error) bool {
	switch e.Code {
	case openai.ShuttingDown, openai.RequestQuarantined, openai.DataClassRefused:
		return false
	case openai.ModelNotFound, openai.AdapterNotFound: // removed meanwhile
		return true
	}
	return e.Status >= 429
}

// FailedStatus reports whether an answer of this status is a failure that another target
// may make good. A Remote that refuses its key or its path fails too.
func FailedStatus(status int, remote bool) bool {
	return status == 429 || status >= 500 || remote && slices.Contains([]int{401, 402, 403, 404, 405, 408}, status)
}
