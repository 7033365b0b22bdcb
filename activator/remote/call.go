package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// DepthHeader counts the servers that a request went through.
const DepthHeader = "thaw-depth"

// maxDepth bounds them, so that servers that are each other's Remotes end a request.
const maxDepth = 3

// assumedOutput is how many tokens a request without a limit of its own is assumed to
// generate, until its answer tells.
const assumedOutput = 4096

// Request is what Begin needs of a request.
type Request struct {
	Name       functions.Name
	Team       string  // that it counts against
	TeamBudget float64 // of the team, a day; 0 is none
	Endpoint   string  // path of the endpoint, as clients name it
	Stream     bool
	Generates  bool   // the endpoint generates tokens
	Depth      string // DepthHeader of the client, "" none
	Envelope   *openai.Envelope
	Entry      *spend.Entry // that is charged with the cost; nil: it is charged at once
}

// Call is one request to a Remote, from Begin to End. One goroutine at a time has it.
type Call struct {
	t        *target
	request  Request
	probe    bool
	key      string
	keyCount int
	prompt   int64 // tokens, an estimate
	hold     *spend.Reservation

	sent     bool
	status   int // of the answer; 0: none came
	proved   outcome
	problem  string
	bytes    int64 // of the answer's body
	events   int64 // data lines of a stream
	after    string
	charge   Charge
	finished bool
}

// Charge is what a call cost.
type Charge struct {
	Usage     openai.Usage
	Cost      float64
	Estimated bool // the answer named no usage
}

// Begin admits a request for a Remote, before it is queued, or returns the answer. Without
// an error, End must follow.
func (r *Remotes) Begin(req Request) (*Call, *openai.Error) {
	t := r.find(req.Name)
	if t == nil {
		return nil, openai.New(openai.ModelNotFound, "")
	}
	c := &Call{t: t, request: req}
	if depth, _ := strconv.Atoi(req.Depth); depth >= maxDepth {
		return nil, openai.New(openai.CompositionCycle,
			fmt.Sprintf("The request went through %d servers already: remotes of each other form a circle.", depth))
	}
	e, changed := c.admit(r.o.Now())
	if changed {
		r.publish(t)
	}
	if e != nil {
		t.count("thaw_remote_requests_total", 1, req.Team, "refused")
		return nil, e
	}
	return c, nil
}

// admit asks the circuit, the limits and the budgets, in this order.
func (c *Call) admit(now time.Time) (e *openai.Error, changed bool) {
	t := c.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.limited(now); e != nil {
		return e, false
	}
	was := t.circuit.state
	probe, wait, ok := t.circuit.admit(now)
	changed = was != t.circuit.state
	if !ok {
		return t.unavailable(t.circuit.reason).After(wait), changed
	}
	c.probe = probe
	output := c.estimate()
	hold, refusal := t.owner.o.Ledger.Reserve(now, t.cost(c.prompt, output), t.budgets(c.request.Team, c.request.TeamBudget)...)
	if refusal != nil {
		t.circuit.end(probe, unknown, "", now)
		return t.budgetError(refusal), changed
	}
	c.hold, c.key, c.keyCount = hold, t.key, t.keyCount
	if t.requests.Size() > 0 {
		t.requests.Take(1, now)
	}
	return nil, changed
}

// estimate estimates the tokens of the prompt, and of the output at most.
func (c *Call) estimate() (output int64) {
	env := c.request.Envelope
	if env == nil {
		return 0
	}
	c.prompt = int64(env.PromptBytes/3 + 8*env.Messages)
	if !c.request.Generates {
		return 0
	}
	if output = env.MaxTokens; output == 0 {
		output = assumedOutput
	}
	return output * int64(max(1, env.N))
}

// cost of tokens at the Remote's price.
func (t *target) cost(prompt, output int64) float64 {
	p := t.spec.Spec.Price
	return (float64(prompt)*p.Input + float64(output)*p.Output) / 1e6
}

func (t *target) budgetError(r *spend.Refusal) *openai.Error {
	currency := t.owner.o.Currency
	if currency != "" {
		currency = " " + currency
	}
	if !r.Used {
		return openai.New(openai.RateLimitExceeded,
			fmt.Sprintf("The rest of the budget of %s, %g%s a day, is reserved by requests under way.", r.Budget.Title, r.Budget.Limit,
				currency)).After(time.Second)
	}
	return openai.New(openai.InsufficientQuota,
		fmt.Sprintf("The budget of %s, %g%s a day, is used up. It renews at %s.", r.Budget.Title, r.Budget.Limit, currency,
			r.Renews.Format(time.RFC3339)))
}

func (t *target) unavailable(reason string) *openai.Error {
	return openai.New(openai.ServiceUnavailable, fmt.Sprintf("The remote `%s` does not answer now: %s.", t.spec.Metadata.Name, reason))
}

// Remote is the one that the call goes to; nil where c is.
func (c *Call) Remote() *functions.Remote {
	if c == nil {
		return nil
	}
	return c.t.spec
}

// Model is what the other side calls the model.
func (c *Call) Model() string { return c.t.spec.ModelName() }

// Address sends a request, which was made for an engine, to the Remote instead.
func (c *Call) Address(out *upstream.Request) {
	t := c.t
	out.Addr, out.Host, out.Secure = t.addr, t.host, t.secure
	out.Prefix, out.Path = t.path(c.request.Endpoint)
	depth, _ := strconv.Atoi(c.request.Depth)
	out.Fields = append(out.Fields, upstream.Field{Name: "accept-encoding", Value: "identity"},
		upstream.Field{Name: DepthHeader, Value: strconv.Itoa(max(0, depth) + 1)})
	if c.key != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + c.key})
	}
	if out.Bound = t.timeouts.FirstToken.Std(); !c.request.Stream && c.request.Generates {
		out.Bound += t.timeouts.Idle.Std() // the first byte comes with the last token
	}
}

// Idle bounds the silence between two pieces of the answer.
func (c *Call) Idle() time.Duration { return c.t.timeouts.Idle.Std() }

// errEncoded is an answer in an encoding that was not asked for.
var errEncoded = errors.New("its answer is compressed although that was not asked for")

// Do sends a request and returns when the head of the answer is there.
func (c *Call) Do(ctx context.Context, out *upstream.Request) (*upstream.Response, error) {
	c.sent = true
	res, err := c.t.client.Do(ctx, out)
	if err != nil {
		c.sent = !errors.Is(err, upstream.ErrDial)
		return nil, err
	}
	c.status, c.after = res.Status, res.Header("retry-after")
	if e := res.Header("content-encoding"); e != "" && !strings.EqualFold(e, "identity") {
		res.Close()
		return nil, errEncoded
	}
	if res.Status < 300 {
		events := strings.HasPrefix(res.Header("content-type"), "text/event-stream")
		res.Filter(func(body io.Reader) io.Reader {
			return &answer{c: c, body: body, events: events, mask: newKeyMask(c.key), data: c.t.owner.o.Now()}
		})
	}
	return res, nil
}

// answer is the body of an answer, in which the key is masked.
type answer struct {
	c      *Call
	body   io.Reader
	events bool
	mask   *keyMask
	data   time.Time // of the last data of a stream
	in     [4 << 10]byte
	out    []byte // to be read next
	err    error
}

func (a *answer) Read(p []byte) (int, error) {
	for len(a.out) == 0 && a.err == nil {
		n, err := a.body.Read(a.in[:])
		a.c.bytes += int64(n)
		if a.events {
			err = a.countEvents(a.in[:n], err)
		}
		a.out, a.err = a.mask.pass(a.in[:n], err != nil), err
	}
	n := copy(p, a.out)
	if a.out = a.out[n:]; len(a.out) == 0 {
		return n, a.err
	}
	return n, nil
}

// The time in which a stream may have comments alone: so many idle timeouts, and so long at
// least. Another thaw sends comments while it loads a model, so they end the silence.
const (
	commentsPerIdle = 10
	leastComments   = 10 * time.Minute
)

// countEvents counts the data lines of a part of a stream. It returns err, or else
// [upstream.ErrSilent] where comments alone have come for too long.
func (a *answer) countEvents(p []byte, err error) error {
	now := a.c.t.owner.o.Now()
	switch n := bytes.Count(p, []byte("data:")); {
	case n > 0:
		a.c.events += int64(n)
		a.data = now
	case err == nil && now.Sub(a.data) > max(commentsPerIdle*a.c.Idle(), leastComments):
		return upstream.ErrSilent
	}
	return err
}

// End ends the call: what it used is charged, and the circuit learns how it went. code is
// the status that the client was answered with, 499 where it left. A second call returns
// the same and does nothing. c may be nil.
func (c *Call) End(usage openai.Usage, code int, now time.Time) Charge {
	if c == nil {
		return Charge{}
	}
	if c.finished {
		return c.charge
	}
	c.finished = true
	t, team := c.t, c.request.Team
	c.charge = c.used(usage)
	u := c.charge.Usage
	c.request.Entry.Settle(c.hold, c.charge.Cost, now)
	if c.proved == unknown && c.status > 0 && code != 499 {
		c.proved = good
	}
	t.mu.Lock()
	if t.tokens.Size() > 0 {
		t.tokens.Free(&alone, now)
		t.tokens.Take(u.Prompt+u.Completion, now)
	}
	if c.proved == misconfigured && c.keyCount != t.keyCount { // the key was replaced meanwhile
		c.proved = unknown
	}
	changed := t.circuit.end(c.probe, c.proved, c.problem, now)
	t.mu.Unlock()
	if changed {
		t.owner.publish(t)
	}
	result := "ok"
	switch {
	case code == 499:
		result = "left"
	case code >= 400:
		result = "failed"
	}
	t.count("thaw_remote_requests_total", 1, team, result)
	t.count("thaw_remote_tokens_total", float64(u.Prompt), team, "prompt")
	t.count("thaw_remote_tokens_total", float64(u.Completion), team, "completion")
	t.count("thaw_spend_total", c.charge.Cost, team)
	if c.charge.Estimated {
		t.count("thaw_remote_estimates_total", 1, team)
	}
	return c.charge
}

// used is what the call is charged for. An answer with an error costs nothing; a request
// that was sent and not answered may have been computed.
func (c *Call) used(u openai.Usage) (charge Charge) {
	switch {
	case c.status >= 300 || c.status == 0 && !c.sent:
		return Charge{}
	case u.Known && c.plausible(u):
		u.Prompt, u.Completion = max(0, u.Prompt), max(0, u.Completion)
	default:
		charge.Estimated = true
		u = openai.Usage{Prompt: c.prompt}
		switch {
		case !c.request.Generates:
		case c.events > 0:
			u.Completion = c.events
		default:
			u.Completion = c.bytes / 4
		}
	}
	charge.Usage, charge.Cost = u, c.t.cost(u.Prompt, u.Completion)
	return charge
}

// Bounds of what an answer may say that it used.
const (
	mostTokens     = 2 << 20 // of a prompt or an answer: no model takes or generates more at once
	promptOverhead = 1 << 17 // tokens of tools, templates and the other side's own prompt
	thinkingTokens = 1 << 17 // of an answer, where the other side does not count them in its limit
	tokensPerByte  = 8       // of a prompt: a small image takes more tokens than bytes
)

// plausible reports whether the usage that an answer claims can be true: of the prompt by
// its size, of the answer by the limit that the request sets. A
// claim that cannot be true is logged, and the tokens are estimated.
func (c *Call) plausible(u openai.Usage) bool {
	prompt, completion := int64(mostTokens), int64(mostTokens)
	if env := c.request.Envelope; env != nil {
		prompt = min(prompt, promptOverhead+tokensPerByte*int64(env.PromptBytes))
		n := int64(max(1, env.N))
		if env.MaxTokens > 0 {
			completion = min(completion, env.MaxTokens+thinkingTokens)
		}
		completion *= n
	}
	if u.Prompt <= prompt && u.Completion <= completion {
		return true
	}
	c.t.owner.o.Log.Warn("a remote claims more tokens than its request can have: they are estimated", "remote", c.t.full, "team",
		c.request.Team,
		"prompt_tokens", u.Prompt, "completion_tokens", u.Completion, "most_prompt", prompt, "most_completion", completion)
	return false
}

// Attrs appends the attributes of the request's line in the log.
func (c Charge) Attrs(to []slog.Attr) []slog.Attr {
	if c == (Charge{}) {
		return to
	}
	to = append(to, slog.Float64("cost", c.Cost))
	if c.Estimated {
		to = append(to, slog.Bool("estimated", true))
	}
	return to
}
