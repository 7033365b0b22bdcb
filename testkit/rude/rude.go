// Package rude is an engine for tests that answers HTTP requests with scripted bytes (in pieces,
// with pauses, cut off, not HTTP), and has a table of such answers with what a client should get.
// Only tests import it.
package rude

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Step is one thing that an engine does after it has read a request. A zero field does
// nothing; the fields take effect in their order.
type Step struct {
	Pause time.Duration
	Write string // these bytes, as they are
	Chunk string // these bytes as one chunk of a chunked body
	Then  End
}

// End is how a connection goes on after a step.
type End int

const (
	Continue End = iota
	Close        // by FIN
	Reset        // by RST where the connection is TCP, else as Close
	Hang         // the engine writes nothing more and waits until its peer closes
)

// Answer is what an engine does with one request. After the last step it reads the next
// request of the connection, unless a step ended it.
type Answer []Step

// Head is a response's head, with the given field lines; its body follows.
func Head(status int, fields ...string) Step {
	return Step{Write: fmt.Sprintf("HTTP/1.1 %d %s\r\n", status, http.StatusText(status)) + strings.Join(append(fields, "", ""), "\r\n")}
}

// Plain is a whole response with a body of known length.
func Plain(status int, contentType, body string, fields ...string) Answer {
	fields = append(fields, fmt.Sprintf("Content-Length: %d", len(body)))
	if contentType != "" {
		fields = append(fields, "Content-Type: "+contentType)
	}
	return Answer{Head(status, fields...), {Write: body}}
}

// Chunked is a response with a body of these chunks; whole adds the one that ends it, otherwise the
// connection closes behind the last.
func Chunked(status int, contentType string, whole bool, chunks ...string) Answer {
	fields := []string{"Transfer-Encoding: chunked"}
	if contentType != "" {
		fields = append(fields, "Content-Type: "+contentType)
	}
	a := Answer{Head(status, fields...)}
	for _, c := range chunks {
		a = append(a, Step{Chunk: c})
	}
	if whole {
		return append(a, Step{Write: "0\r\n\r\n"})
	}
	return append(a, Step{Then: Close})
}

// Play does what the answer says; false means that the connection is over.
func (a Answer) Play(c net.Conn) bool {
	for _, s := range a {
		if s.Pause > 0 {
			time.Sleep(s.Pause)
		}
		out := s.Write
		if s.Chunk != "" {
			out += fmt.Sprintf("%x\r\n%s\r\n", len(s.Chunk), s.Chunk)
		}
		if out != "" {
			if _, err := io.WriteString(c, out); err != nil {
				return false
			}
		}
		switch s.Then {
		case Hang:
			io.Copy(io.Discard, c)
			return false
		case Reset:
			if t, ok := c.(*net.TCPConn); ok {
				t.SetLinger(0)
			}
			return false
		case Close:
			return false
		}
	}
	return true
}

// Request is one request that an engine has read.
type Request struct {
	Conn   int // which connection, from 1
	Method string
	Path   string
	Header http.Header
	Body   string
}

// Engine is a server on a TCP port of the loopback interface. It ends with its test.
type Engine struct {
	Addr string

	mu       sync.Mutex
	answers  []Answer // of the next requests; the last one repeats
	requests []Request
	conns    map[net.Conn]struct{}
	count    int // of connections so far
	closed   bool
	wait     sync.WaitGroup
}

// Start starts an engine that plays these answers, one a request; the last one repeats.
func Start(t testing.TB, answers ...Answer) *Engine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Addr: l.Addr().String(), answers: answers, conns: map[net.Conn]struct{}{}}
	e.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.accept(c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		e.mu.Lock()
		e.closed = true
		for c := range e.conns {
			c.Close()
		}
		e.mu.Unlock()
		e.wait.Wait()
	})
	return e
}

func (e *Engine) accept(c net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		c.Close()
		return
	}
	e.count++
	n := e.count
	e.conns[c] = struct{}{}
	e.wait.Go(func() {
		e.serve(c, n)
		c.Close()
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
	})
}

// serve reads requests and plays their answers.
func (e *Engine) serve(c net.Conn, number int) {
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || !e.next(Request{number, r.Method, r.URL.Path, r.Header, string(body)}).Play(c) {
			return
		}
	}
}

// next notes a request and returns its answer; without answers the engine closes.
func (e *Engine) next(r Request) Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests = append(e.requests, r)
	if len(e.answers) == 0 {
		return Answer{{Then: Close}}
	}
	a := e.answers[0]
	if len(e.answers) > 1 {
		e.answers = e.answers[1:]
	}
	return a
}

// Requests returns the requests so far, in the order in which they were read.
func (e *Engine) Requests() []Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]Request(nil), e.requests...)
}
