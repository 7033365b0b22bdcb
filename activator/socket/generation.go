package socket

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

// generation is one request to the data path, and its answer as frames.
type generation struct {
	o         *socket
	body      []byte
	ctx       *httpserver.Context
	cancelled atomic.Bool
	last      atomic.Bool   // its last frame is written, and then it ends
	done      chan struct{} // closed when nothing of it runs
	began     time.Time
	ahead     *lease // what was prepared for it; nil: nothing

	pending []byte // of a line that is not whole
	frame   []byte // the last token's
	ended   bool   // the answer had its end mark
	failed  bool   // an error frame was sent
	first   time.Duration
	usage   jsontext.Value
	reason  string
	phases  map[string]int
}

const (
	maxLine  = 1 << 20
	maxPlain = 16 << 20 // of an answer that is no stream
	// patience is sent as the client's bound between two bytes: the data path writes
	// progress three times as often.
	patience = "1.5"
)

// run asks and writes frames until the answer has ended. Then the socket takes the next
// submit, or ends with its server.
func (g *generation) run() {
	o := g.o
	unhook := o.up.Context().AfterFunc(func() { g.ctx.End(httpserver.ErrDraining) })
	g.ask()
	unhook()
	g.ctx.End(httpserver.ErrGone)
	if g.ahead != nil {
		g.ahead.release()
	}
	if !g.failed {
		g.complete()
	}
	o.conn.release()
	o.mu.Lock()
	o.generation = nil
	draining := o.draining
	o.mu.Unlock()
	close(g.done)
	if draining {
		o.goAway()
	}
}

// ask sends the request and passes the answer on.
func (g *generation) ask() {
	var res httpserver.Response
	closed := false
	closeOnce := func() {
		if res.Stream != nil && !closed {
			closed = true
			res.Stream.Close()
		}
	}
	defer func() {
		if p := recover(); p != nil {
			g.o.s.o.Log.Error("a generation of a socket panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			g.fail(string(openai.InternalError), openai.New(openai.InternalError, "").Message)
		}
		closeOnce()
	}()
	o := g.o
	fields := append([]httpserver.Field{
		{Name: "Content-Type", Value: "application/json"}, {Name: "X-Stainless-Read-Timeout", Value: patience},
		{Name: "thaw-session", Value: o.key.client},
	}, o.fields...)
	if a := o.handshake.authorization; a != "" {
		fields = append(fields, httpserver.Field{Name: "Authorization", Value: a})
	}
	isDraining := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.draining
	}
	o.s.o.Generate(httpserver.NewRequest("POST", generatePath, fields, g.body, g.ctx, isDraining), &res)
	if res.Status >= 400 {
		g.failBy(readPlain(&res))
		return
	}
	o.send(g.startFrame(&res))
	if !isEventStream(&res) {
		g.plain(readPlain(&res))
		return
	}
	buf := make([]byte, 4<<10)
	for !g.failed {
		n, err := res.Stream.Read(buf)
		o.conn.hold() // what came together goes on together
		g.pass(buf[:n])
		if err != nil {
			g.end(err)
			return // the last frame is behind
		}
		o.conn.release()
	}
}

func isEventStream(res *httpserver.Response) bool {
	kind, _, _ := strings.Cut(httpserver.FieldOf(res.Fields, "content-type"), ";")
	return res.Stream != nil && strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

func readPlain(res *httpserver.Response) []byte {
	if res.Stream == nil {
		return res.Body
	}
	b, _ := io.ReadAll(io.LimitReader(res.Stream, maxPlain))
	return b
}

// startFrame reads what the Router chose from the answer's head.
func (g *generation) startFrame(res *httpserver.Response) startFrame {
	f := startFrame{Type: "generation_start"}
	target := ""
	for part := range strings.SplitSeq(httpserver.FieldOf(res.Fields, "thaw-route"), ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if key == "target" {
			target = value
		}
	}
	f.Model, f.Adapter, _ = strings.Cut(target, ":")
	if f.Cold = httpserver.FieldOf(res.Fields, "thaw-cold-start") != ""; f.Cold {
		f.ETA = g.o.prediction.expected(target)
	}
	_, f.Moved, _ = strings.Cut(httpserver.FieldOf(res.Fields, "thaw-session"), "why=")
	if g.ahead != nil {
		g.ahead.settle(target, f.Cold, g.began)
	}
	return f
}

// pass passes on the lines of the answer that are whole.
func (g *generation) pass(p []byte) {
	for !g.failed {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		line := p[:i]
		if len(g.pending) > 0 {
			line = append(g.pending, line...)
			g.pending = g.pending[:0]
		}
		g.line(bytes.TrimSuffix(line, []byte("\r")))
		p = p[i+1:]
	}
	if len(g.pending)+len(p) > maxLine {
		g.fail(string(openai.EngineCrashed), "The engine sent a line beyond all bounds.")
		return
	}
	g.pending = append(g.pending, p...)
}

func (g *generation) line(line []byte) {
	switch {
	case bytes.HasPrefix(line, []byte(": thaw timeline ")):
		g.phases = map[string]int{}
		for name, v := range words(line[len(": thaw timeline "):]) {
			g.phases[name], _ = strconv.Atoi(v)
		}
	case bytes.HasPrefix(line, []byte(": thaw ")):
		f := progressFrame{Type: "progress"}
		line, why, _ := bytes.Cut(line, []byte(" why="))
		f.Why = string(why)
		for name, v := range words(line[len(": thaw "):]) {
			n, err := strconv.Atoi(v)
			switch {
			case name == "state":
				f.State = v
			case err != nil:
			case name == "percent":
				f.Percent = &n
			case name == "eta_s":
				f.ETA = &n
			case name == "position":
				f.Position = &n
			}
		}
		g.o.send(f)
	case bytes.HasPrefix(line, []byte("data:")):
		g.data(bytes.TrimSpace(line[len("data:"):]))
	}
}

// words yields the NAME=VALUE of a comment.
func words(b []byte) func(yield func(name, value string) bool) {
	return func(yield func(string, string) bool) {
		for w := range strings.FieldsSeq(string(b)) {
			name, value, _ := strings.Cut(w, "=")
			if !yield(name, value) {
				return
			}
		}
	}
}

// chunk is what is read of an event, and of a plain answer.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Reason string `json:"finish_reason"`
	} `json:"choices"`
	Usage jsontext.Value `json:"usage"`
	Error *struct {
		Code    any    `json:"code"`
		Type    any    `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

func (g *generation) data(b []byte) {
	if string(b) == "[DONE]" {
		g.ended = true
		return
	}
	var c chunk
	if json.Unmarshal(b, &c, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return // an event of another kind
	}
	if c.Error != nil {
		g.failBy(b)
		return
	}
	g.take(&c)
}

func (g *generation) take(c *chunk) {
	if c.Usage.Kind() == '{' {
		g.usage = c.Usage.Clone()
	}
	for i := range c.Choices {
		x := &c.Choices[i]
		if x.Reason != "" {
			g.reason = x.Reason
		}
		if text := x.Delta.Content + x.Message.Content; text != "" {
			if g.first == 0 {
				g.first = max(1, g.o.s.o.Now().Sub(g.began))
			}
			g.frame, _ = jsontext.AppendQuote(append(g.frame[:0], `{"type":"token","content":`...), text) // it is UTF-8, see data
			g.frame = append(g.frame, '}')
			g.o.write(g.frame)
		}
	}
}

// plain passes on an answer that is no stream.
func (g *generation) plain(b []byte) {
	var c chunk
	if err := json.Unmarshal(b, &c, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil || len(c.Choices) == 0 {
		g.failBy(b)
		return
	}
	g.take(&c)
}

// end ends an answer whose stream ended with err.
func (g *generation) end(err error) {
	if len(g.pending) > 0 && !g.failed {
		g.line(g.pending)
	}
	if g.failed || g.ended || g.cancelled.Load() || err == io.EOF && g.reason != "" {
		return
	}
	if errors.Is(g.ctx.Err(), httpserver.ErrDraining) {
		e := openai.New(openai.ShuttingDown, "")
		g.fail(string(e.Code), e.Message)
		return
	}
	g.fail(string(openai.EngineCrashed), "The answer broke off.")
}

// failBy sends the error that an answer holds.
func (g *generation) failBy(b []byte) {
	if g.cancelled.Load() {
		return
	}
	var c chunk
	json.Unmarshal(b, &c, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if c.Error == nil {
		g.fail(string(openai.EngineCrashed), "The engine's answer cannot be read.")
		return
	}
	code, ok := c.Error.Code.(string)
	if !ok || code == "" {
		if code, ok = c.Error.Type.(string); !ok || code == "" {
			code = string(openai.EngineCrashed)
		}
	}
	g.fail(code, c.Error.Message)
}

func (g *generation) fail(code, message string) {
	if g.failed {
		return
	}
	g.failed = true
	g.last.Store(true)
	g.o.send(errorFrame{"error", code, message})
}

func (g *generation) complete() {
	if g.cancelled.Load() {
		g.reason = "cancelled"
	}
	if g.usage == nil {
		g.usage = jsontext.Value("null")
	}
	g.last.Store(true)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	g.o.send(completeFrame{Type: "generation_complete", Reason: g.reason, Usage: g.usage,
		Timing: timing{ms(g.first), ms(g.o.s.o.Now().Sub(g.began)), g.phases}})
}
