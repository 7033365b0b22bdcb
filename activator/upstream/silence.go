package upstream

import (
	"errors"
	"net"
	"os"
	"strings"
)

// HTTP/1.1 has no request ids: an answer belongs to the oldest request that has none. An
// engine that writes more than it was asked for would shift the answers of a connection,
// and each client would get that of the one before. So a connection is looked at before
// it is used, and what is there ends it.

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

// checkSilent fails if the connection has ended or has bytes before a request is sent.
func (c *conn) checkSilent() error {
	switch c.look() {
	case spoke:
		return errUnsolicited
	case ended:
		if c.reused {
			return errStale
		}
	}
	return nil
}

// look finds what is there to read, without waiting. A connection without a file
// descriptor, which only tests have, is always silent.
func (c *conn) look() presence {
	var b []byte
	var err error
	switch {
	case c.socket == nil:
		return silent
	case c.under == nil:
		b, err = c.socket.peek()
	default: // TLS may have read it from the socket already
		c.under.polls = true
		_, err = c.reader.Peek(1)
		c.under.polls = false
		b, _ = c.reader.Peek(c.reader.Buffered())
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

// source is what a connection's answers are read from. It sends the request before, where
// conn.send left that to it.
type source struct{ c *conn }

func (s source) Read(p []byte) (int, error) {
	c := s.c
	request := c.asks
	if request == nil {
		return c.netConn.Read(p)
	}
	c.asks = nil
	sent, n, early, err := c.asker.Ask(request, p)
	switch {
	case early && n > 0 && !isTimeoutAnswer(p[:n]):
		return 0, errUnsolicited
	case early:
		return 0, errStale
	case sent == len(request):
		return n, err
	case err == nil: // the kernel took a part
		_, err = c.netConn.Write(request[sent:])
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case err != nil && c.look() == spoke:
		return 0, errEarly
	}
	c.sendErr = err // the answer may be there all the same
	return c.netConn.Read(p)
}
