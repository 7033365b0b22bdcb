package socket

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/call"
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

	frame  []byte // the last token's
	ended  bool   // the answer had its end mark
	failed bool   // an error frame was sent
	first  time.Duration
	usage  jsontext.Value
	reason string
	phases map[string]int
}

// patience is sent as the client's bound between two bytes: the data path writes progress
// three times as often.
const patience = "1.5"

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
	draining := o.draining.Load()
	o.mu.Unlock()
	close(g.done)
	if draining {
		o.goAway()
	}
}

// ask sends the request and passes the answer on.
func (g *generation) ask() {
	o := g.o
	fields := append([]httpserver.Field{
		{Name: "X-Stainless-Read-Timeout", Value: patience}, {Name: "thaw-session", Value: o.key.client},
	}, o.fields...)
	if a := o.handshake.authorization; a != "" {
		fields = append(fields, httpserver.Field{Name: "Authorization", Value: a})
	}
	s := call.Open(g.ctx, o.s.o.Generate, &call.Caller{Keyed: true, Draining: o.draining.Load}, generatePath, fields, g.body)
	defer s.Close()
	if s.Status < 400 {
		o.send(g.startFrame(&s.Answer))
	}
	if !s.IsEvents {
		answer, err := s.Whole()
		g.plain(&answer, err)
		return
	}
	s.OnRead = o.conn.release
	for !g.failed {
		line, err := s.Next()
		o.conn.hold() // what came together goes on together
		if err != nil {
			g.end(err)
			return // the last frame is behind
		}
		g.line(line)
	}
}

// startFrame reads what the Router chose from the answer's head.
func (g *generation) startFrame(head *call.Answer) startFrame {
	f := startFrame{Type: "generation_start"}
	target := head.RouteTarget()
	f.Model, f.Adapter, _ = strings.Cut(target, ":")
	if f.Cold = head.Header("thaw-cold-start") != ""; f.Cold {
		f.ETA = g.o.prediction.expected(target)
	}
	_, f.Moved, _ = strings.Cut(head.Header("thaw-session"), "why=")
	if g.ahead != nil {
		g.ahead.settle(target, f.Cold, g.began)
	}
	return f
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
		g.reason = cmp.Or(x.Reason, g.reason)
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
func (g *generation) plain(a *call.Answer, err error) {
	if err != nil {
		g.end(err)
		return
	}
	var c chunk
	if a.Status >= 400 || json.Unmarshal(a.Body, &c, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil ||
		len(c.Choices) == 0 {
		g.failBy(a.Body)
		return
	}
	g.take(&c)
}

func (g *generation) end(err error) {
	if g.ended || g.cancelled.Load() || err == io.EOF && g.reason != "" {
		return
	}
	e := openai.New(openai.EngineCrashed, "The answer broke off.")
	switch panicked, ok := errors.AsType[*call.PanicError](err); {
	case ok:
		g.o.s.o.Log.Error("a generation of a socket panicked", slog.Any("panic", panicked.Value), slog.String("stack", string(panicked.Stack)))
		e = openai.New(openai.InternalError, "")
	case errors.Is(g.ctx.Err(), httpserver.ErrDraining):
		e = openai.New(openai.ShuttingDown, "")
	case errors.Is(err, call.ErrTooLarge):
		e = openai.New(openai.EngineCrashed, "The engine sent a line beyond all bounds.")
	}
	g.fail(string(e.Code), e.Message)
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
	code, _ := c.Error.Code.(string)
	kind, _ := c.Error.Type.(string)
	g.fail(cmp.Or(code, kind, string(openai.EngineCrashed)), c.Error.Message)
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
