package socket

import (
	"context"
	"encoding/json/v2"
	"io"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	maxMessage   = 64 << 10
	maxDiscarded = 1 << 20 // of a message beyond maxMessage; a larger one ends the socket
	maxPerSecond = 200
	maxFaults    = 5 // within faultWindow
	faultWindow  = 10 * time.Second
)

// socket is one connection. The goroutine that reads owns everything but what mu guards.
type socket struct {
	s         *Server
	up        *httpserver.Upgraded
	ws        *websocket.Conn
	id        auth.Identity
	handshake handshake // its authorization goes on with each generation
	key       sessionKey
	router    string
	fields    []httpserver.Field

	session    session
	prediction prediction
	second     time.Time // the present window of maxPerSecond
	messages   int       // in it
	faults     []time.Time

	mu         sync.Mutex
	generation *generation // nil: none runs
	draining   bool
}

// account is what bounds of a key count by.
func (o *socket) account() string { return o.id.Team + "\x00" + o.id.KeyID }

// run serves the connection until it ends.
func (o *socket) run(u *httpserver.Upgraded) {
	o.up = u
	ws, err := o.handshake.accept(u)
	if err != nil {
		return
	}
	o.ws = ws
	ws.SetReadLimit(maxDiscarded)
	o.session = o.s.sessions.find(o.key, o.s.o.Now())
	u.OnDrain(o.drain)
	idle := time.AfterFunc(o.s.o.Idle, func() { ws.Close(websocket.StatusNormalClosure, "idle") })
	for o.readMessage() {
		idle.Reset(o.s.o.Idle)
	}
	idle.Stop()
	o.mu.Lock()
	g := o.generation
	o.mu.Unlock()
	if g != nil {
		g.ctx.End(httpserver.ErrGone)
	}
	ws.CloseNow()
	if g != nil {
		<-g.done
	}
	o.prediction.end()
}

// remember stores the session at each change, so that a client finds it however soon it
// connects again.
func (o *socket) remember() {
	o.s.sessions.store(o.key, o.session, o.s.o.Now())
}

// drain ends a socket of a server that shuts down: at once, or behind its generation.
func (o *socket) drain() {
	o.mu.Lock()
	o.draining = true
	running := o.generation != nil
	o.mu.Unlock()
	if !running {
		o.goAway()
	}
}

func (o *socket) goAway() { o.ws.Close(websocket.StatusGoingAway, "shutting down") }

// send writes one frame. Where it fails, as it does where the client does not read, the
// connection ends, and the reader with it.
func (o *socket) send(frame any) {
	b, err := json.Marshal(frame)
	if err != nil {
		o.s.o.Log.Error("a frame of a socket cannot be written", "error", err)
		return
	}
	if o.ws.Write(context.Background(), websocket.MessageText, b) != nil { // by the connection's own deadline
		o.up.Close()
	}
}

func (o *socket) sendError(e *openai.Error) {
	o.send(errorFrame{"error", string(e.Code), e.Message})
}

// fault answers a message that breaks the protocol. It returns false where there were too
// many: the socket is closed with the code.
func (o *socket) fault(e *openai.Error, code websocket.StatusCode) bool {
	now := o.s.o.Now()
	for len(o.faults) > 0 && now.Sub(o.faults[0]) > faultWindow {
		o.faults = o.faults[1:]
	}
	o.faults = append(o.faults, now)
	o.sendError(e)
	if len(o.faults) < maxFaults {
		return true
	}
	o.s.o.Log.Info("a socket was ended for its faults", slog.String("team", o.id.Team), slog.String("error", string(e.Code)))
	o.end(code, string(e.Code))
	return false
}

// end closes the socket. The client may be sending: its frames are read until it answers.
func (o *socket) end(code websocket.StatusCode, reason string) { o.ws.Close(code, reason) }

// readMessage reads and serves one message; false where the connection has ended.
func (o *socket) readMessage() bool {
	kind, r, err := o.ws.Reader(context.Background())
	if err != nil {
		return false
	}
	b, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err != nil {
		return false
	}
	large := len(b) > maxMessage
	if large {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return false
		}
	}
	now := o.s.o.Now()
	if now.Sub(o.second) >= time.Second {
		o.second, o.messages = now, 0
	}
	if o.messages++; o.messages > maxPerSecond {
		switch {
		case o.messages == maxPerSecond+1:
			return o.fault(openai.New(openai.RateLimitExceeded, "A socket takes 200 messages a second; those beyond are dropped."), websocket.StatusPolicyViolation)
		case o.messages > 10*maxPerSecond:
			o.end(websocket.StatusPolicyViolation, string(openai.RateLimitExceeded))
			return false
		}
		return true
	}
	switch {
	case large:
		return o.fault(openai.New(openai.RequestTooLarge, "A message has at most 65536 bytes."), websocket.StatusMessageTooBig)
	case kind != websocket.MessageText:
		return o.fault(openai.New(openai.InvalidRequest, "A binary message: send text."), websocket.StatusUnsupportedData)
	case !utf8.Valid(b):
		return o.fault(openai.New(openai.InvalidRequest, "The message is not UTF-8."), websocket.StatusInvalidFramePayloadData)
	}
	m, e := parseMessage(b)
	if e == nil {
		e = o.serve(m)
	}
	if e != nil {
		return o.fault(e, websocket.StatusPolicyViolation)
	}
	return true
}

// serve does what a message asks.
func (o *socket) serve(m message) *openai.Error {
	switch m.Type {
	case kindPing:
		o.send(pongFrame{"pong"})
		return nil
	case kindCancel:
		o.mu.Lock()
		g := o.generation
		o.mu.Unlock()
		if g == nil || g.last.Load() {
			return openai.New(openai.Conflict, "There is no generation to cancel.")
		}
		g.cancelled.Store(true)
		g.ctx.End(httpserver.ErrGone)
		return nil
	}
	if m.Text != nil || m.Messages != nil {
		o.session.text, o.session.messages = "", m.Messages
		if m.Text != nil {
			o.session.text = *m.Text
		}
		o.remember()
	}
	if m.Type == kindSubmit {
		return o.submit()
	}
	if _, e := o.s.o.Caller(o.handshake.field); e != nil { // revoked meanwhile
		o.sendError(e)
		o.end(websocket.StatusPolicyViolation, string(e.Code))
		return nil
	}
	return o.predictApart()
}

// predictApart runs predict in a goroutine of its own: a decision needs a deep stack, and
// the reader's would stay that large while the socket is idle.
func (o *socket) predictApart() (e *openai.Error) {
	ended := make(chan any)
	go func() {
		defer func() { ended <- recover() }()
		e = o.predict()
	}()
	if p := <-ended; p != nil {
		panic(p)
	}
	return e
}

// submit starts a generation.
func (o *socket) submit() *openai.Error {
	if o.session.text == "" && o.session.messages == nil {
		return openai.New(openai.Conflict, "There is nothing to submit: send a text first.")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if g := o.generation; g != nil && g.last.Load() {
		o.mu.Unlock()
		<-g.done // the client has its last frame already
		o.mu.Lock()
	}
	switch {
	case o.draining:
		return openai.New(openai.ShuttingDown, "")
	case o.generation != nil:
		return openai.New(openai.Conflict, "A generation is running: cancel it, or wait for its end.")
	}
	var messages any
	if o.session.messages != nil {
		messages = o.session.messages
	}
	body, err := o.body(o.session.text, messages)
	if err != nil {
		return openai.New(openai.InvalidJSON, err.Error())
	}
	g := &generation{o: o, body: body, ctx: &httpserver.Context{}, done: make(chan struct{}), began: o.s.o.Now(), ahead: o.prediction.takeLease()}
	o.generation = g
	go g.run()
	return nil
}
