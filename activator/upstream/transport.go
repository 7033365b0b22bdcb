package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/tcp"
)

// transport is the byte stream of a connection, plain or TLS, with its deadlines.
//
// HTTP/1.1 has no request ids: an answer belongs to the oldest request that has none. An
// engine that writes more than it was asked for would shift the answers of a connection,
// and each client would get that of the one before. So a connection is looked at before
// it is used, and what is there ends it.
type transport struct {
	conn    net.Conn
	socket  *socket   // nil: it cannot be looked at
	under   *pollable // under TLS
	reader  *bufio.Reader
	asker   asker  // nil: a request is sent and its answer read by two calls
	asks    []byte // the request that the next read of the answer sends before
	sendErr error  // that it failed with

	readUntil, writeUntil time.Time // the deadlines of conn; zero is none
}

// open begins with a new connection.
func (t *transport) open(nc net.Conn) {
	t.conn = tcp.Wrap(nc)
	t.socket = newSocket(t.conn)
	t.asker, _ = t.conn.(asker)
	t.reader = bufio.NewReaderSize(t, 8<<10)
}

// startTLS makes a new connection TLS, or closes it.
func (t *transport) startTLS(ctx context.Context, config *tls.Config) error {
	t.asker = nil
	t.under = &pollable{Conn: t.conn, socket: t.socket}
	conn := tls.Client(t.under, config)
	t.conn = conn
	err := conn.HandshakeContext(ctx)
	if err != nil {
		conn.NetConn().Close()
	}
	return err
}

// limitSilence moves the read deadline so that silence of d ends the exchange, at most slack
// late, and moves it again only when slack has passed: a stream calls this for each piece.
func (t *transport) limitSilence(now time.Time, d, slack time.Duration) {
	if left := t.readUntil.Sub(now); left < d || left > d+slack {
		t.setReadDeadline(now.Add(d + slack))
	}
}

func (t *transport) setReadDeadline(until time.Time) {
	t.readUntil = until
	t.conn.SetReadDeadline(until)
}

func (t *transport) setWriteDeadline(until time.Time) {
	t.writeUntil = until
	t.conn.SetWriteDeadline(until)
}

// What look finds on a connection.
type presence int

const (
	silent presence = iota
	ended           // the engine has closed it
	spoke           // bytes are there
)

var (
	errStale       = errors.New("it was closed while it was idle")
	errUnsolicited = errors.New("it sent bytes before it got the request")
	errEarly       = errors.New("it sent bytes before it got the whole request")
)

// look finds what is there to read, without waiting. A connection without a file
// descriptor, which only tests have, is always silent.
func (t *transport) look() presence {
	var b []byte
	var err error
	switch {
	case t.socket == nil:
		return silent
	case t.under == nil:
		b, err = t.socket.peek()
	default: // TLS may have read it from the socket already
		t.under.polls = true
		_, err = t.reader.Peek(1)
		t.under.polls = false
		b, _ = t.reader.Peek(t.reader.Buffered())
	}
	switch {
	case len(b) > 0 && isTimeoutAnswer(b):
		return ended
	case len(b) > 0:
		return spoke
	case errors.Is(err, os.ErrDeadlineExceeded):
		return silent
	}
	return ended
}

// isTimeoutAnswer reports whether b begins a 408, which some servers send when they close
// an idle connection.
func isTimeoutAnswer(b []byte) bool {
	return len(b) >= 12 && strings.HasPrefix(string(b), "HTTP/1.") && string(b[8:12]) == " 408"
}

// pollable is the connection under TLS.
type pollable struct {
	net.Conn
	socket *socket
	polls  bool // Read does not wait; os.ErrDeadlineExceeded where it would
}

func (p *pollable) Read(b []byte) (int, error) {
	if p.polls {
		return p.socket.read(b)
	}
	return p.Conn.Read(b)
}

// asker is a connection that looks for bytes, sends a request and waits for its answer in one
// call, which costs less than four.
type asker interface {
	Ask(request, p []byte) (sent, n int, early bool, err error)
}

// Read reads of the answer. It sends the request before, where conn.send left that to it.
func (t *transport) Read(p []byte) (int, error) {
	request := t.asks
	if request == nil {
		return t.conn.Read(p)
	}
	t.asks = nil
	sent, n, early, err := t.asker.Ask(request, p)
	switch {
	case early && n > 0 && !isTimeoutAnswer(p[:n]):
		return 0, errUnsolicited
	case early:
		return 0, errStale
	case sent == len(request):
		return n, err
	case err == nil: // the kernel took a part
		_, err = t.conn.Write(request[sent:])
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case err != nil && t.look() == spoke:
		return 0, errEarly
	}
	t.sendErr = err // the answer may be there all the same
	return t.conn.Read(p)
}
