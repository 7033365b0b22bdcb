package compositions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/functions/openai"
)

// answered is what is read of a member's answer, or of one chunk of it.
type answered struct {
	Choices []struct {
		Delta   text   `json:"delta"`
		Message text   `json:"message"`
		Reason  string `json:"finish_reason"`
	} `json:"choices"`
	Usage jsontext.Value `json:"usage"`
	Error jsontext.Value `json:"error"`
	Thaw  struct {       // of a Composition
		Cost float64 `json:"cost"`
	} `json:"thaw"`
}

// maxText bounds the answer of a member in bytes; others read the beginning of it.
const maxText = 1 << 20

type text struct {
	Content jsontext.Value `json:"content"`
}

// read returns a content that is a string, or the text of one that is a list of parts: some
// providers have a part of reasoning before it.
func (t text) read() (s string) {
	switch t.Content.Kind() {
	case '"':
		json.Unmarshal(t.Content, &s, openai.Tolerant) // it was read as a value, so it is a string
	case '[':
		var parts []struct {
			Text string `json:"text"`
		}
		var b strings.Builder
		if json.Unmarshal(t.Content, &parts, openai.Tolerant) == nil {
			for _, p := range parts {
				b.WriteString(p.Text)
			}
		}
		return b.String()
	}
	return s
}

// maxTokens bounds what an answer may say that it used.
const maxTokens = 1 << 40

// readUsage reads the usage of an answer; false: it names none that can be.
func readUsage(raw jsontext.Value) (u compose.Usage, ok bool) {
	var x struct {
		Prompt     float64 `json:"prompt_tokens"` // some servers write 12.0
		Completion float64 `json:"completion_tokens"`
	}
	if raw.Kind() != '{' || json.Unmarshal(raw, &x, openai.Tolerant) != nil || max(x.Prompt, x.Completion) > maxTokens {
		return u, false
	}
	return compose.Usage{Prompt: int64(max(0, x.Prompt)), Completion: int64(max(0, x.Completion))}, true
}

// asked is one call under way.
type asked struct {
	r       *run
	q       compose.Call
	index   int // in the record
	member  Function
	began   time.Time
	stream  bool
	body    []byte
	reply   compose.Reply
	text    strings.Builder
	usage   bool // the answer named its usage
	reason  string
	cost    float64 // that a Composition named
	started func()
}

// ask asks a member. It is the Ask of the run.
func (r *run) ask(ctx context.Context, q compose.Call) (compose.Reply, error) {
	name := r.nameOf(q.Member)
	a := &asked{r: r, q: q, began: r.s.o.Now(), started: q.Began}
	a.member, _ = r.s.o.State(r.q.Caller, name)
	if a.started == nil {
		a.started = func() {}
	}
	a.begin()
	r.startNext(q.Next, false)
	// A member that is loaded answers plainly, which costs less. While another starts, its
	// stream tells how far it is.
	a.stream = q.Final && r.out != nil || !a.member.Ready
	err := a.send(ctx, name, r.formatOf(&q))
	if e := (*openai.Error)(nil); errors.As(err, &e) && e.Status == 400 && q.JSON != nil && r.isOwnSchema(&q) && ctx.Err() == nil &&
		a.text.Len() == 0 {
		err = a.send(ctx, name, nil) // it takes no schema; the prompt has it too
	}
	a.end(err)
	return a.reply, err
}

// nameOf is the name by which the caller names a member: members are of the Composition's
// team.
func (r *run) nameOf(member string) string {
	if team := r.q.Composition.Metadata.Namespace; team != r.q.Caller.Team && !strings.Contains(member, "/") {
		return team + "/" + member
	}
	return member
}

func (a *asked) begin() {
	r, q := a.r, &a.q
	r.mu.Lock()
	a.index = len(r.record.Calls)
	r.record.Calls = append(r.record.Calls, functions.CompositionCall{
		Member: q.Member, Role: q.Role, Round: q.Round, Step: q.Step, Final: q.Final, Start: a.began.Sub(r.began).Seconds(),
	})
	r.mu.Unlock()
}

// end completes the call's part of the record.
func (a *asked) end(err error) {
	r := a.r
	a.reply.Text, a.reply.Took = a.text.String(), r.s.o.Now().Sub(a.began)
	if err == nil && !a.usage { // it is charged by the data path, which estimates it too
		a.reply.Usage = compose.Usage{Prompt: int64(len(a.body) / 4), Completion: int64(len(a.reply.Text) / 4)}
	}
	u, p := a.reply.Usage, a.member.Price
	a.reply.Cost = cmp.Or(a.cost, (float64(u.Prompt)*p.Input+float64(u.Completion)*p.Output)/1e6)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.record.Calls[a.index]
	c.Duration, c.Prompt, c.Completion, c.Cost, c.Cold = a.reply.Took.Seconds(), u.Prompt, u.Completion, a.reply.Cost, a.reply.Cold
	c.Estimated = err == nil && !a.usage
	if err != nil {
		c.Error = errorText(err)
	}
	if a.q.Final {
		r.finish = a.reason
	}
}

// errorText is an error for people.
func errorText(err error) string {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// formatOf is the response_format of a call: the client's own where it asks for the client's
// schema.
func (r *run) formatOf(q *compose.Call) jsontext.Value {
	switch {
	case q.JSON == nil:
		return nil
	case !r.isOwnSchema(q):
		return r.client.format
	}
	return slices.Concat(jsontext.Value(`{"type":"json_schema","json_schema":{"name":"answer","schema":`), q.JSON, jsontext.Value("}}"))
}

// isOwnSchema reports whether a call asks for a schema that is not the client's.
func (r *run) isOwnSchema(q *compose.Call) bool {
	return r.client.schema == nil || !bytes.Equal(q.JSON, r.client.schema)
}

// send sends the request once and reads its answer.
func (a *asked) send(ctx context.Context, name string, format jsontext.Value) error {
	a.body = a.encode(name, format)
	if a.member.Ready {
		a.started()
	}
	s := call.Open(ctx, a.r.s.o.Serve, &a.r.caller, Path, a.r.fields, a.body)
	defer s.Close()
	a.noteHead(s)
	if !s.IsEvents {
		whole, err := s.Whole()
		if err != nil {
			return a.broken(ctx, err)
		}
		a.started()
		return a.readPlain(&whole)
	}
	for {
		line, err := s.Next()
		switch {
		case err == io.EOF && a.reason != "":
			return nil
		case err != nil:
			return a.broken(ctx, err)
		case line[0] == ':':
			a.r.memberComment(a.q.Member, line)
			continue
		}
		data := bytes.TrimSpace(line[len("data:"):])
		if string(data) == "[DONE]" {
			return nil
		}
		if err := a.readChunk(data); err != nil {
			return err
		}
	}
}

// broken is the error of an answer that did not come whole.
func (a *asked) broken(ctx context.Context, err error) error {
	var p *call.PanicError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &p):
		a.r.logPanic(p.Value, p.Stack)
		return openai.New(openai.InternalError, "")
	}
	return openai.New(openai.EngineCrashed, "The answer of `"+a.q.Member+"` broke off.")
}

func (a *asked) noteHead(s *call.Stream) {
	cold := s.Header("thaw-cold-start")
	a.reply.Cold = cold != ""
	if target := s.RouteTarget(); target != "" {
		if f, ok := a.r.s.o.State(a.r.q.Caller, a.r.nameOf(target)); ok {
			a.member.Price = f.Price
		}
	}
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	c := &a.r.record.Calls[a.index]
	c.ID, c.Cold, c.ColdStart = s.Header("x-request-id"), a.reply.Cold, cold
}

func (a *asked) encode(name string, format jsontext.Value) []byte {
	x := struct {
		Model     string            `json:"model"`
		Messages  []compose.Message `json:"messages"`
		Most      int               `json:"max_tokens,omitzero"`
		MostNew   int               `json:"max_completion_tokens,omitzero"`
		Format    jsontext.Value    `json:"response_format,omitzero"`
		Stream    bool              `json:"stream,omitzero"`
		StreamOpt map[string]bool   `json:"stream_options,omitzero"`
		Sampling  jsontext.Value    `json:",embed"` // has none of the keys above, see readRequest
	}{Model: name, Messages: a.q.Messages, Most: a.q.MaxTokens, Format: format, Stream: a.stream, Sampling: a.q.Sampling}
	if a.r.client.maxKey == "max_completion_tokens" {
		x.Most, x.MostNew = 0, x.Most
	}
	if a.stream {
		x.StreamOpt = map[string]bool{"include_usage": true}
	}
	b, _ := json.Marshal(&x, openai.Tolerant) // its values are of JSON that was read
	return b
}

func appendText(b []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(b, s) // an error says that what is not UTF-8 was replaced
	return out
}

func (a *asked) readPlain(whole *call.Answer) error {
	if e := whole.Problem(); e != nil {
		return e
	}
	var x answered
	if err := json.Unmarshal(whole.Body, &x, openai.Tolerant); err != nil || len(x.Choices) == 0 {
		return openai.New(openai.EngineCrashed, "The answer of `"+a.q.Member+"` cannot be read.")
	}
	return a.take(&x)
}

func (a *asked) readChunk(data []byte) error {
	var x answered
	if json.Unmarshal(data, &x, openai.Tolerant) != nil {
		return nil // an event of another kind
	}
	if x.Error != nil && x.Error.Kind() != 'n' {
		e := openai.EngineError(502, nil, data, a.r.s.o.Now())
		if own := openai.New(e.Code, ""); own.Status != 500 { // a frame of the data path, which names no status
			e.Status, e.Retry, e.RetryAfter = own.Status, own.Retry, own.RetryAfter
		}
		return e
	}
	return a.take(&x)
}

// take takes over the text and the usage of an answer or a chunk.
func (a *asked) take(x *answered) error {
	if u, ok := readUsage(x.Usage); ok {
		a.usage, a.reply.Usage = true, u
	}
	if a.member.Composition { // of others it is what they like
		a.cost = max(a.cost, x.Thaw.Cost)
	}
	if len(x.Choices) == 0 {
		return nil
	}
	c := &x.Choices[0]
	a.reason = cmp.Or(c.Reason, a.reason)
	part := c.Delta.read() + c.Message.read()
	if part != "" || c.Reason != "" {
		a.started()
	}
	most := maxText
	if a.q.Final {
		most = call.MaxAnswer
	}
	if a.text.Len()+len(part) > most {
		return openai.New(openai.EngineCrashed, "The answer of `"+a.q.Member+"` is longer than all bounds.")
	}
	a.text.WriteString(part)
	if a.q.Final && part != "" {
		return a.r.writeContent(part)
	}
	return nil
}
