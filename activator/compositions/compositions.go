// Package compositions answers chat requests for Compositions: it runs their patterns
// (functions/compose), sends the members' requests through the activator, asks together only
// members that fit together on the machines, writes one answer, and keeps records of the newest
// runs in memory.
//
// A call to a member is a request of this program's own (package call): it waits, wakes and
// is retried as any other, its tokens and its money are charged to the caller, and the place
// of the client's request in the team's limits covers it. All calls of a request have ended
// before the request has.
package compositions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/records"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Path is the endpoint that Compositions answer.
const Path = "/v1/chat/completions"

// Options of a Server. Serve and State must be set; each other field has the default named.
type Options struct {
	// Serve is the data path.
	Serve httpserver.Handler
	// State is what is known now of the function that a caller names; false: there is none.
	State func(id auth.Identity, asked string) (Function, bool)
	// Packing returns a function that reports whether a model fits onto the machines beside
	// those that it was called for before, by their memory and that of their GPUs; nil: all
	// models fit together.
	Packing func() func(functions.Name) bool
	// Prewarm starts a model that is needed later, on the budget of prewarms; nil: none is
	// started. It does not wait.
	Prewarm func(name functions.Name, by string)
	// Stage stages the bytes of a model that cannot start yet, behind what requests wait for;
	// nil: its start does. It does not wait.
	Stage func(name functions.Name, by string)
	// Wake starts a model that is asked as soon as the calls under way have ended, for a
	// team; nil: its own request starts it. It does not wait.
	Wake func(name functions.Name, team string)
	// Release tells the platform that a model has answered and its Composition asks it no
	// more: another may have its room at once; nil: it is told nothing. It does not wait.
	Release func(name functions.Name)
	// Silent is how long a stream waits before its 200 goes out, Comment the period of
	// comments and Noop that of chunks that add nothing; 3 s, 4 s and 45 s.
	Silent, Comment, Noop time.Duration
	// Log gets panics; nil is silence.
	Log *slog.Logger
	// Now is the clock; time.Now.
	Now func() time.Time
}

// Function is the present state of a member.
type Function struct {
	Name        functions.Name
	Ready       bool // it takes a request without a start; so do all functions that are no models
	Model       bool
	Composition bool          // its answer names its cost
	Wait        time.Duration // forecast of the time until it is ready; 0 unknown
	Price       functions.Price
}

// Server answers requests for Compositions. Its methods may be called concurrently.
type Server struct {
	o       Options
	set     atomic.Pointer[set]
	records records.Log[functions.CompositionRecord]
}

// maxRecords bounds the requests whose records are remembered.
const maxRecords = 1024

// Record returns the record of a request of the team (of any with ""), by its id or by the
// client's own, of which the newest counts.
func (s *Server) Record(team, id string) (functions.CompositionRecord, bool) {
	return s.records.Find(team, id, nil)
}

// set is immutable.
type set struct {
	byName map[functions.Name]*functions.Composition
	sorted []*functions.Composition
}

// New makes a server without Compositions.
func New(o Options) *Server {
	def := func(d *time.Duration, v time.Duration) { *d = cmp.Or(*d, v) }
	def(&o.Silent, 3*time.Second)
	def(&o.Comment, 4*time.Second)
	def(&o.Noop, 45*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o}
	s.set.Store(&set{})
	return s
}

// Set replaces all Compositions. A request under way keeps its own.
func (s *Server) Set(all []*functions.Composition) {
	n := &set{byName: make(map[functions.Name]*functions.Composition, len(all)), sorted: slices.Clone(all)}
	for _, c := range all {
		n.byName[c.FullName()] = c
	}
	slices.SortFunc(n.sorted, func(a, b *functions.Composition) int { return a.FullName().Compare(b.FullName()) })
	s.set.Store(n)
}

// Find returns the Composition of a name; nil where there is none.
func (s *Server) Find(name functions.Name) *functions.Composition { return s.set.Load().byName[name] }

// All Compositions by name. The slice must not be changed.
func (s *Server) All() []*functions.Composition { return s.set.Load().sorted }

func (s *Server) Names(team string) (names []string) {
	for _, c := range s.All() {
		if c.Metadata.Namespace == team {
			names = append(names, c.Metadata.Name)
		}
	}
	return names
}

type Request struct {
	ID, ClientID string
	Composition  *functions.Composition
	Caller       auth.Identity // that is charged
	From         *call.Caller  // of a request of this program; nil: a client's
	Data         functions.DataClass
	Envelope     *openai.Envelope
	Stream       bool
	Low          bool // its priority is low: it evicts nothing
	HTTP         *httpserver.Request
	// Finished is called once, after the last byte of a stream or its client's leaving.
	Finished func(code int, reason string, summary Summary)
}

// Summary is what a request used.
type Summary struct {
	Calls              int
	Prompt, Completion int64
	Cost               float64
	First              time.Duration // to the first content of a stream; 0: there was none
}

// Attrs appends the fields of the request's line in the log.
func (s Summary) Attrs(to []slog.Attr) []slog.Attr {
	if s.Calls == 0 {
		return to
	}
	to = append(to, slog.Int("calls", s.Calls), slog.Int64("prompt_tokens", s.Prompt), slog.Int64("completion_tokens", s.Completion))
	if s.Cost > 0 {
		to = append(to, slog.Float64("cost", s.Cost))
	}
	return to
}

// run is one request under way.
type run struct {
	s      *Server
	q      *Request
	plan   *compose.Plan
	input  compose.Input
	client clientRequest
	began  time.Time
	ctx    context.Context // of the request
	fields []httpserver.Field
	caller call.Caller // of its calls
	out    *stream     // nil: the answer is plain
	id     string      // of the answer
	name   string      // the Composition's, in the answer
	places Places
	stored *records.Entry[functions.CompositionRecord]

	mu      sync.Mutex
	record  functions.CompositionRecord // as it is now
	finish  string                      // finish_reason of the synthesis
	content bool                        // some of it was streamed
	first   time.Duration               // to that
	steps   []byte                      // the members' answers, where a plain answer shows them
}

// Serve answers a request. Without an error res has the answer, or the stream that it will
// be; Finished is called for a stream alone.
func (s *Server) Serve(q *Request, res *httpserver.Response) (Summary, *openai.Error) {
	r := &run{s: s, q: q, began: s.o.Now(), ctx: q.HTTP.Context(), id: "chatcmpl-" + q.ID, name: q.Composition.FullName().Short()}
	r.places = Places{Packing: s.o.Packing, State: r.state}
	if e := r.prepare(); e != nil {
		return Summary{}, e
	}
	r.store()
	if q.Stream {
		return r.serveStream(res)
	}
	result, err := r.compose(r.ctx)
	summary := r.end(&result, err)
	if err != nil {
		if errors.Is(r.ctx.Err(), httpserver.ErrGone) {
			res.Status = httpserver.StatusClientLeft
			return summary, nil
		}
		return summary, r.failure(err)
	}
	res.Set("content-type", "application/json")
	res.Body = r.plainAnswer(&result)
	return summary, nil
}

// prepare reads the request and checks that it does not go in a circle.
func (r *run) prepare() (e *openai.Error) {
	q := r.q
	full := q.Composition.FullName()
	depth, _ := strconv.Atoi(q.HTTP.Header("thaw-depth"))
	var path []string
	if q.From != nil {
		path = q.From.Path
	}
	switch {
	case slices.Contains(path, full.String()):
		return openai.New(openai.CompositionCycle,
			"The Composition `"+full.Short()+"` asks itself, through "+functions.Clip(fmt.Sprint(path))+".")
	case depth >= functions.MaxCompositionDepth:
		return openai.New(openai.CompositionCycle,
			fmt.Sprintf("The request went through %d Compositions and servers already, and may go through %d.", depth,
				functions.MaxCompositionDepth))
	}
	if r.client, e = readRequest(q.HTTP.Body, q.Envelope); e != nil {
		return e
	}
	r.caller = call.Caller{
		Identity: q.Caller, Parent: q.ID, Path: append(slices.Clip(path), full.String()), Depth: max(0, depth) + 1,
		Priority: q.HTTP.Header("thaw-priority"), Data: q.Data, Entry: q.From.Charged(), Draining: q.HTTP.Draining,
	}
	for _, name := range []string{"thaw-session", "thaw-cache", "thaw-cold", "thaw-warm", "traceparent"} {
		if v := q.HTTP.Header(name); v != "" {
			r.fields = append(r.fields, httpserver.Field{Name: name, Value: v})
		}
	}
	if q.HTTP.Header("thaw-cache") == "only" {
		return openai.New(openai.CacheMiss, "The answers of Compositions are not cached.")
	}
	r.input = compose.Input{Messages: r.client.messages, JSON: r.client.schema, MaxTokens: r.client.maxTokens, Sampling: r.client.sampling}
	r.plan = planOf(&q.Composition.Spec)
	r.record = functions.CompositionRecord{
		ID: q.ID, Time: r.began.UTC().Format(time.RFC3339Nano), Composition: full.String(), Pattern: q.Composition.Spec.Pattern,
		Calls: []functions.CompositionCall{},
	}
	return nil
}

func planOf(s *functions.CompositionSpec) *compose.Plan {
	b := s.Budget
	p := &compose.Plan{
		Pattern: compose.Pattern(s.Pattern), Members: s.Members.List, Coordinator: s.Coordinator, Rounds: s.Rounds, Quorum: s.Quorum,
		Patience: s.Patience.Std(),
		Budget:   compose.Budget{Calls: b.Calls, ColdStarts: b.ColdStarts, Tokens: int64(b.Tokens), Cost: b.Cost, Time: b.Time.Std()},
	}
	if s.Pattern == functions.PatternMaestro {
		p.Members, p.Agents = nil, s.Members.ByRole()
	}
	return p
}

// compose runs the pattern. A panic in it is an error.
func (r *run) compose(ctx context.Context) (result compose.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			r.logPanic(v, debug.Stack())
			err = openai.New(openai.InternalError, "")
		}
	}()
	r.stageLater()
	return compose.Run(ctx, r.plan, r.input, r.ask, r.places.Ready, r.onEvent)
}

func (r *run) logPanic(v any, stack []byte) {
	r.s.o.Log.Error("a Composition panicked", slog.String("id", r.q.ID), slog.Any("panic", v), slog.String("stack", string(stack)))
}

// end completes the record.
func (r *run) end(result *compose.Result, err error) Summary {
	r.mu.Lock()
	rec := &r.record
	for _, l := range result.LeftOut {
		rec.LeftOut = append(rec.LeftOut,
			functions.CompositionLeftOut{Member: l.Member, Role: l.Role, Round: l.Round, Step: l.Step, Reason: string(l.Reason)})
	}
	if a := result.Agreement; a.Answers > 0 {
		rec.Agreement = &functions.CompositionAgreement{Answers: a.Answers, Agree: a.Agree, Exact: a.Exact}
	}
	rec.Rounds, rec.Prompts, rec.Cost, rec.Code = result.Rounds, result.Prompts, result.Cost, 200
	if rec.PlanError, rec.AnsweredBy = result.PlanError, result.AnsweredBy; rec.AnsweredBy != "" {
		r.finish = "stop" // not that of the empty synthesis
	}
	rec.Seconds = r.s.o.Now().Sub(r.began).Seconds()
	summary := Summary{Calls: len(rec.Calls), Prompt: result.Usage.Prompt, Completion: result.Usage.Completion, Cost: result.Cost,
		First: r.first}
	if err != nil {
		e := r.failure(err)
		if rec.Code, rec.Error = e.Status, e.Message; errors.Is(r.ctx.Err(), httpserver.ErrGone) {
			rec.Code = httpserver.StatusClientLeft
		}
	}
	r.mu.Unlock()
	r.store()
	return summary
}

// store stores the record as it is now.
func (r *run) store() {
	r.stored = r.s.records.Put(r.stored, maxRecords, r.q.Caller.Team, r.q.ID, r.q.ClientID, r.recordNow())
}

func (r *run) recordNow() functions.CompositionRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.record
	rec.Calls = slices.Clone(rec.Calls)
	return rec
}

// failure is the answer to a request that failed: the cause where one call is to blame, with
// the status that it has.
func (r *run) failure(err error) *openai.Error {
	if errors.Is(err, httpserver.ErrDraining) {
		return openai.New(openai.ShuttingDown, "")
	}
	var failed *compose.Error
	if !errors.As(err, &failed) {
		if e, ok := errors.AsType[*openai.Error](err); ok {
			return e
		}
		return openai.New(openai.InternalError, "")
	}
	text := "The Composition `" + r.name + "` has no answer: " + failed.Error() + "."
	var cause *openai.Error
	switch {
	case failed.Kind == compose.BudgetSpent && failed.Reason == compose.ReasonTime:
		return openai.New(openai.QueueTimeout, text)
	case failed.Kind == compose.BudgetSpent:
		return openai.New(openai.InsufficientQuota, text+" Its budget bounds one request: spec.budget in its file.")
	case failed.Kind == compose.BadInput:
		return openai.New(openai.InvalidValue, text)
	case errors.As(failed.Err, &cause) && cause.Status == 404: // a member is missing, and not what the client named
		return openai.New(openai.ServiceUnavailable, text)
	case errors.As(failed.Err, &cause):
		e := *cause
		e.Message, e.JSON, e.Param = text, nil, ""
		return &e
	}
	return openai.New(openai.EngineCrashed, text)
}
