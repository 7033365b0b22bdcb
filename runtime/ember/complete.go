package ember

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
}

func usageOf(q *sequence, generated int) *usage {
	return &usage{len(q.prompt), len(q.prompt) + generated, generated}
}

// completion is one body or chunk of an answer.
type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"`
	Usage   *usage `json:"usage,omitzero"`
}

type textChoice struct {
	Index    int           `json:"index"`
	Text     string        `json:"text"`
	Logprobs *textLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
	Stop     any           `json:"stop_reason"`
}

type textLogprobs struct {
	Offsets []int                `json:"text_offset"`
	Scores  []*float64           `json:"token_logprobs"`
	Tokens  []string             `json:"tokens"`
	Top     []map[string]float64 `json:"top_logprobs"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  chatDelta     `json:"message"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
	Stop     any           `json:"stop_reason"`
}

type chatDelta struct {
	Role    string  `json:"role,omitzero"`
	Content *string `json:"content,omitzero"`
}

type chatChunk struct {
	Index    int           `json:"index"`
	Delta    chatDelta     `json:"delta"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
	Stop     any           `json:"stop_reason,omitzero"`
}

type chatLogprobs struct {
	Content []chatScore `json:"content"`
}

type chatScore struct {
	Token   string      `json:"token"`
	Logprob float64     `json:"logprob"`
	Bytes   []int       `json:"bytes"`
	Top     []chatScore `json:"top_logprobs,omitzero"`
}

// generation is a way of answering: chat or text.
type generation struct {
	isChat  bool
	adapter *llama.Adapter
	head    completion // what all bodies of this answer share
	around  string     // echo: the prompt, before the text
	offset  int        // of the next token in the text, for text logprobs
	e       *engine
}

func (s *server) completions(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	g, adapter, f := s.decodeGenerate(w, r)
	if f != nil {
		return f
	}
	in, f := parseInputs(g.Prompt, "prompt", 1)
	if f == nil && g.Echo && g.Logprobs.Kind() == '0' {
		f = unsupported("echo", "echo together with logprobs")
	}
	if f != nil {
		return f
	}
	sp := &generation{adapter: adapter, head: completion{ID: "cmpl-" + requestID(r), Object: "text_completion"}}
	prompt, f := in[0].encode(e.loadedModel)
	if f != nil {
		return f
	}
	if g.Echo {
		sp.around = in[0].text
		if in[0].ids {
			sp.around = e.tok.Decode(prompt)
		}
	}
	return s.generate(e, w, r, g, sp, prompt)
}

func (s *server) chat(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	g, adapter, f := s.decodeGenerate(w, r)
	if f != nil {
		return f
	}
	prompt, f := e.render(g.Messages)
	if f != nil {
		return f
	}
	sp := &generation{isChat: true, adapter: adapter, head: completion{ID: "chatcmpl-" + requestID(r), Object: "chat.completion"}}
	if g.Stream {
		sp.head.Object = "chat.completion.chunk"
	}
	return s.generate(e, w, r, g, sp, prompt)
}

// decodeGenerate reads and validates a request, and returns it with the adapter that it names.
func (s *server) decodeGenerate(w http.ResponseWriter, r *http.Request) (*generate, *llama.Adapter, *failure) {
	g := new(generate)
	f := decodeBody(w, r, g)
	if f == nil {
		f = g.check()
	}
	if f != nil {
		return nil, nil, f
	}
	adapter, f := s.checkModel(g.Model)
	return g, adapter, f
}

// render turns messages into tokens. The template writes the special tokens itself.
func (m *loadedModel) render(ms []message) ([]int, *failure) {
	c, f := conversation(ms)
	if f != nil {
		return nil, f
	}
	text, err := m.template.Render(c, time.Now())
	if err != nil {
		return nil, invalidRequest("messages", "invalid_value", "%v", err)
	}
	return m.encode(text, false)
}

func (s *server) generate(e *engine, w http.ResponseWriter, r *http.Request, g *generate, sp *generation,
	prompt []int) *failure {
	q, f := g.sequence(e.loadedModel, sp.isChat, prompt)
	if f == nil {
		q.adapter = sp.adapter
		f = submitSequence(e.loop, q)
	}
	if f != nil {
		return f
	}
	defer e.loop.withdraw(q)
	sp.e = e
	sp.head.Created = time.Now().Unix()
	sp.head.Model = cmp.Or(g.Model, s.o.Names[0])
	began := time.Now()
	var end piece
	if g.Stream {
		end = sp.writeStream(w, r, q, g.StreamOptions != nil && g.StreamOptions.IncludeUsage)
	} else {
		end = sp.writeWhole(w, r, q)
	}
	reason := end.finish
	switch {
	case end.err != nil:
		reason = end.err.Error()
	case reason == "":
		reason = "client left"
	}
	s.o.Log.Info("request", "id", sp.head.ID, "prompt_tokens", len(prompt), "completion_tokens", end.generated,
		"finish", reason, "took", time.Since(began).Round(100*time.Microsecond))
	return nil
}

func submitSequence(l *loop, q *sequence) *failure {
	switch err := l.submit(q); {
	case errors.Is(err, errFull):
		return unavailable("queue_full", err.Error())
	case err != nil:
		return unavailable("shutting_down", err.Error())
	}
	return nil
}

// nextPiece waits for the next piece; it has the context's error if the client has gone.
func nextPiece(ctx context.Context, q *sequence) piece {
	select {
	case <-q.ready:
		return q.takePiece()
	case <-ctx.Done():
		p := q.takePiece()
		if !p.over() {
			p.err = ctx.Err()
		}
		return p
	}
}

func (g *generation) writeWhole(w http.ResponseWriter, r *http.Request, q *sequence) piece {
	var text strings.Builder
	var scores []scored
	for {
		p := nextPiece(r.Context(), q)
		text.WriteString(p.text)
		scores = append(scores, p.scores...)
		if !p.over() {
			continue
		}
		if p.err != nil {
			if r.Context().Err() == nil {
				unavailable("shutting_down", p.err.Error()).write(w)
			}
			return p
		}
		b, answer := g.head, text.String()
		b.Usage = usageOf(q, p.generated)
		if g.isChat {
			b.Choices = []any{chatChoice{0, chatDelta{"assistant", &answer}, g.chatScores(q, scores), &p.finish, p.stop}}
		} else {
			b.Choices = []any{textChoice{0, g.around + answer, g.textScores(q, scores), &p.finish, p.stop}}
		}
		writeJSON(w, http.StatusOK, b)
		return p
	}
}

const writeBound = 30 * time.Second

// writeStream writes chunks; each has all that was generated during the last write.
func (g *generation) writeStream(w http.ResponseWriter, r *http.Request, q *sequence, withUsage bool) piece {
	rc := http.NewResponseController(w)
	send := func(v any) error {
		b, err := json.Marshal(v, json.FormatNilSliceAsNull(true))
		if err != nil {
			return err
		}
		rc.SetWriteDeadline(time.Now().Add(writeBound)) // always supported by net/http's own
		if _, err := w.Write(append(append([]byte("data: "), b...), "\n\n"...)); err != nil {
			return err
		}
		return rc.Flush()
	}
	chunk := func(choices []any, u *usage) error {
		b := g.head
		b.Choices, b.Usage = choices, u
		return send(b)
	}
	// The head waits for the first token: until then a failure can still be a status.
	p := nextPiece(r.Context(), q)
	if p.err != nil {
		if r.Context().Err() == nil {
			unavailable("shutting_down", p.err.Error()).write(w)
		}
		return p
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	empty := ""
	var err error
	if g.isChat {
		err = chunk([]any{chatChunk{Delta: chatDelta{"assistant", &empty}}}, nil)
	} else if g.around != "" {
		err = chunk([]any{textChoice{Text: g.around}}, nil)
	}
	for err == nil {
		if p.text != "" || p.finish != "" {
			err = chunk([]any{g.part(q, &p)}, nil)
		}
		if p.over() || err != nil {
			break
		}
		p = nextPiece(r.Context(), q)
	}
	switch {
	case err != nil:
		p.err = err
	case p.err != nil:
		if r.Context().Err() == nil {
			// An error frame and no [DONE]: the stream did not end well.
			send(unavailable("shutting_down", p.err.Error()).body())
		}
	default:
		if withUsage {
			err = chunk([]any{}, usageOf(q, p.generated))
		}
		if err == nil {
			w.Write([]byte("data: [DONE]\n\n"))
			rc.Flush()
		}
	}
	return p
}

// part is the choice of one chunk.
func (g *generation) part(q *sequence, p *piece) any {
	var finish *string
	if p.finish != "" {
		finish = &p.finish
	}
	if g.isChat {
		return chatChunk{Delta: chatDelta{Content: &p.text}, Logprobs: g.chatScores(q, p.scores), Finish: finish, Stop: p.stop}
	}
	return textChoice{Text: p.text, Logprobs: g.textScores(q, p.scores), Finish: finish, Stop: p.stop}
}

// name is a token's text as a client sees it.
func (g *generation) name(id int) string {
	return strings.ToValidUTF8(string(g.e.tok.Bytes(id)), "\uFFFD")
}

func (g *generation) chatScores(q *sequence, ss []scored) *chatLogprobs {
	if q.logprobs < 0 {
		return nil
	}
	one := func(id int, p float64) chatScore {
		b := functions.ConvertAll(g.e.tok.Bytes(id), func(c byte) int { return int(c) })
		return chatScore{Token: g.name(id), Logprob: clampLogprob(p), Bytes: b, Top: []chatScore{}}
	}
	out := &chatLogprobs{Content: []chatScore{}}
	for _, s := range ss {
		c := one(s.id, s.logprob)
		for _, t := range s.top {
			top := one(t.id, t.p)
			top.Top = nil
			c.Top = append(c.Top, top)
		}
		out.Content = append(out.Content, c)
	}
	return out
}

func (g *generation) textScores(q *sequence, ss []scored) *textLogprobs {
	if q.logprobs < 0 {
		return nil
	}
	out := &textLogprobs{[]int{}, []*float64{}, []string{}, []map[string]float64{}}
	for _, s := range ss {
		p := clampLogprob(s.logprob)
		name := g.name(s.id)
		top := map[string]float64{name: p}
		for _, t := range s.top {
			top[g.name(t.id)] = clampLogprob(t.p)
		}
		out.Offsets = append(out.Offsets, g.offset)
		out.Scores = append(out.Scores, &p)
		out.Tokens = append(out.Tokens, name)
		out.Top = append(out.Top, top)
		g.offset += len(name)
	}
	return out
}

// clampLogprob keeps a token that could not be chosen, or weights that make no number, out
// of JSON's reach of infinity, as OpenAI does.
func clampLogprob(p float64) float64 {
	if p > -9999 {
		return p
	}
	return -9999
}
