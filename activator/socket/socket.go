package socket

import (
	"context"
	"encoding/json/v2"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
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
	conn      frameConn // up, as it is written to
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
	pings      *time.Timer

	mu         sync.Mutex
	generation *generation // nil: none runs
	draining   atomic.Bool // set under mu
}

// account is what bounds of a key count by.
func (s *socket) account() string { return s.id.Team + "\x00" + s.id.KeyID }

// run serves the connection until it ends.
func (s *socket) run(u *httpserver.Upgraded) {
	s.up, s.conn.ReadWriteCloser = u, u
	ws, err := s.handshake.accept(u, &s.conn)
	if err != nil {
		return
	}
	s.ws = ws
	ws.SetReadLimit(maxDiscarded)
	s.session = s.s.sessions.find(s.key, s.s.o.Now())
	u.OnDrain(s.drain)
	idle := time.AfterFunc(s.s.o.Idle, func() { ws.Close(websocket.StatusNormalClosure, "idle") })
	s.pings = time.AfterFunc(time.Hour, s.ping)
	s.pings.Reset(s.s.o.Ping)
	for s.readMessage() {
		idle.Reset(s.s.o.Idle)
	}
	idle.Stop()
	s.pings.Stop()
	s.mu.Lock()
	g := s.generation
	s.mu.Unlock()
	if g != nil {
		g.ctx.End(httpserver.ErrGone)
	}
	ws.CloseNow()
	if g != nil {
		<-g.done
	}
	s.prediction.end()
}

// ping keeps the connection through proxies, which end one that is silent, and comes again
// until the connection has ended.
func (s *socket) ping() {
	ctx, cancel := context.WithTimeout(context.Background(), s.s.o.Ping)
	defer cancel()
	if err := s.ws.Ping(ctx); err == nil || ctx.Err() != nil {
		s.pings.Reset(s.s.o.Ping)
	}
}

// remember stores the session at each change, so that a client finds it however soon it
// connects again.
func (s *socket) remember() { s.s.sessions.store(s.key, s.session, s.s.o.Now()) }

// drain ends a socket of a server that shuts down: at once, or behind its generation.
func (s *socket) drain() {
	s.mu.Lock()
	s.draining.Store(true)
	running := s.generation != nil
	s.mu.Unlock()
	if !running {
		s.goAway()
	}
}

func (s *socket) goAway() { s.ws.Close(websocket.StatusGoingAway, "shutting down") }

// send writes one frame. Where that fails, as it does where the client does not read, the
// connection ends, and the reader with it.
func (s *socket) send(frame any) {
	b, err := json.Marshal(frame)
	if err != nil {
		s.s.o.Log.Error("a frame of a socket cannot be written", "error", err)
		return
	}
	s.write(b)
}

// write writes a frame that is marshalled.
func (s *socket) write(b []byte) {
	if s.ws.Write(context.Background(), websocket.MessageText, b) != nil { // by the connection's own deadline
		s.up.Close()
	}
}

func (s *socket) sendError(e *openai.Error) {
	s.send(errorFrame{"error", string(e.Code), e.Message})
}

// fault answers a message that breaks the protocol. It returns false where there were too
// many: the socket is closed with the code.
func (s *socket) fault(e *openai.Error, code websocket.StatusCode) bool {
	now := s.s.o.Now()
	for len(s.faults) > 0 && now.Sub(s.faults[0]) > faultWindow {
		s.faults = s.faults[1:]
	}
	s.faults = append(s.faults, now)
	s.sendError(e)
	if len(s.faults) < maxFaults {
		return true
	}
	s.s.o.Log.Info("a socket was ended for its faults", slog.String("team", s.id.Team), slog.String("error", string(e.Code)))
	s.ws.Close(code, string(e.Code)) // which reads what the client is sending until it answers
	return false
}

// readMessage reads and serves one message; false where the connection has ended.
func (s *socket) readMessage() bool {
	kind, r, err := s.ws.Reader(context.Background())
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
	now := s.s.o.Now()
	if now.Sub(s.second) >= time.Second {
		s.second, s.messages = now, 0
	}
	if s.messages++; s.messages > maxPerSecond {
		switch {
		case s.messages == maxPerSecond+1:
			return s.fault(openai.New(openai.RateLimitExceeded, "A socket takes 200 messages a second; those beyond are dropped."),
				websocket.StatusPolicyViolation)
		case s.messages > 10*maxPerSecond:
			s.ws.Close(websocket.StatusPolicyViolation, string(openai.RateLimitExceeded))
			return false
		}
		return true
	}
	switch {
	case large:
		return s.fault(openai.New(openai.RequestTooLarge, "A message has at most 65536 bytes."), websocket.StatusMessageTooBig)
	case kind != websocket.MessageText:
		return s.fault(openai.New(openai.InvalidRequest, "A binary message: send text."), websocket.StatusUnsupportedData)
	case !utf8.Valid(b):
		return s.fault(openai.New(openai.InvalidRequest, "The message is not UTF-8."), websocket.StatusInvalidFramePayloadData)
	}
	m, e := parseMessage(b)
	if e == nil {
		e = s.serve(m)
	}
	if e != nil {
		return s.fault(e, websocket.StatusPolicyViolation)
	}
	return true
}

// serve does what a message asks.
func (s *socket) serve(m message) *openai.Error {
	switch m.Type {
	case kindPing:
		s.send(pongFrame{"pong"})
		return nil
	case kindCancel:
		s.mu.Lock()
		g := s.generation
		s.mu.Unlock()
		if g == nil || g.last.Load() {
			return openai.New(openai.Conflict, "There is no generation to cancel.")
		}
		g.cancelled.Store(true)
		g.ctx.End(httpserver.ErrGone)
		return nil
	}
	if m.Text != nil || m.Messages != nil {
		s.session.text, s.session.messages = "", m.Messages
		if m.Text != nil {
			s.session.text = *m.Text
		}
		s.remember()
	}
	if m.Type == kindSubmit {
		return s.submit()
	}
	if _, e := s.s.o.Caller(s.handshake.field); e != nil { // revoked meanwhile
		s.sendError(e)
		s.ws.Close(websocket.StatusPolicyViolation, string(e.Code))
		return nil
	}
	return s.predictApart()
}

// predictApart runs predict in a goroutine of its own: a decision needs a deep stack, and
// the reader's would stay that large while the socket is idle.
func (s *socket) predictApart() (e *openai.Error) {
	ended := make(chan any)
	go func() {
		defer func() { ended <- recover() }()
		e = s.predict()
	}()
	if p := <-ended; p != nil {
		panic(p)
	}
	return e
}

func (s *socket) submit() *openai.Error {
	if s.session.text == "" && s.session.messages == nil {
		return openai.New(openai.Conflict, "There is nothing to submit: send a text first.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.generation; g != nil && g.last.Load() {
		s.mu.Unlock()
		<-g.done // the client has its last frame already
		s.mu.Lock()
	}
	switch {
	case s.draining.Load():
		return openai.New(openai.ShuttingDown, "")
	case s.generation != nil:
		return openai.New(openai.Conflict, "A generation is running: cancel it, or wait for its end.")
	}
	var messages any
	if s.session.messages != nil {
		messages = s.session.messages
	}
	body, err := s.body(s.session.text, messages)
	if err != nil {
		return openai.New(openai.InvalidJSON, err.Error())
	}
	g := &generation{o: s, body: body, ctx: &httpserver.Context{}, done: make(chan struct{}), began: s.s.o.Now(),
		ahead: s.prediction.takeLease()}
	s.generation = g
	go g.run()
	return nil
}
