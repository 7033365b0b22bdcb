package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// askedConn is a connection to an engine that answers each write. Its Ask does what a test says.
type askedConn struct {
	net.Conn // of the kernel, where bytes may be found
	ask      func(request, p []byte) (sent, n int, early bool, err error)
	writeErr error

	written []string
	answers bytes.Buffer
	closed  bool
}

func (c *askedConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}

func (c *askedConn) Ask(request, p []byte) (int, int, bool, error) { return c.ask(request, p) }

func (c *askedConn) Write(p []byte) (int, error) {
	if c.writeErr != nil {
		return 0, c.writeErr
	}
	c.written = append(c.written, string(p))
	c.answers.WriteString(okHello)
	return len(p), nil
}

func (c *askedConn) Read(p []byte) (int, error) { return c.answers.Read(p) }
func (c *askedConn) Close() error               { c.closed = true; return c.Conn.Close() }

// TestAsks: what a request becomes that is sent and answered by one call of its connection, by how
// much of it was sent and what came.
func TestAsks(t *testing.T) {
	const timeout = "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
	answer := func(sent func(request []byte) int, err error) func(c *askedConn) {
		return func(c *askedConn) {
			c.ask = func(request, p []byte) (int, int, bool, error) {
				c.answers.WriteString(okHello)
				return sent(request), 0, false, err
			}
		}
	}
	part := func([]byte) int { return 5 }
	early := func(came string, err error) func(c *askedConn) {
		return func(c *askedConn) {
			c.ask = func(_, p []byte) (int, int, bool, error) { return 0, copy(p, came), true, err }
		}
	}
	for _, x := range []struct {
		name   string
		change func(c *askedConn)
		there  bool   // bytes are on the connection when sending has failed
		want   string // of the request, and of the connections
	}{
		{name: "an answer", want: "hello, 1 connections, 1 idle; wrote nothing", change: func(c *askedConn) {
			c.ask = func(request, p []byte) (int, int, bool, error) { return len(request), copy(p, okHello), false, nil }
		}},
		{name: "silence", want: "silent, 1 connections, 0 idle; wrote nothing", change: func(c *askedConn) {
			c.ask = func(request, p []byte) (int, int, bool, error) { return len(request), 0, false, os.ErrDeadlineExceeded }
		}},
		{name: "the end", want: "hello, 2 connections, 1 idle; wrote nothing", change: func(c *askedConn) {
			c.ask = func(request, p []byte) (int, int, bool, error) { return len(request), 0, false, io.EOF }
		}},
		{name: "bytes before", want: "hello, unsolicited 1 first, 2 connections, 0 idle; wrote nothing", change: early("stray", nil)},
		{name: "a time-out before", want: "hello, 2 connections, 1 idle; wrote nothing", change: early(timeout, nil)},
		{name: "the end before", want: "hello, 2 connections, 1 idle; wrote nothing", change: early("", io.EOF)},
		{name: "a part is sent", want: "hello, 1 connections, 1 idle; wrote the rest", change: func(c *askedConn) {
			c.ask = func([]byte, []byte) (int, int, bool, error) { return 5, 0, false, nil }
		}},
		{name: "a part is sent, and no more", want: "silent, 1 connections, 0 idle; wrote nothing", change: answer(part, os.ErrDeadlineExceeded)},
		{name: "sending fails, and it answers", want: "hello, 1 connections, 0 idle; wrote nothing", change: answer(part, syscall.EPIPE)},
		{name: "sending fails, and there are bytes", there: true, want: "hello, unsolicited 1 first, 2 connections, 0 idle; wrote nothing",
			change: answer(part, syscall.EPIPE)},
		{name: "the rest fails, and it answers", want: "hello, 1 connections, 0 idle; wrote nothing", change: func(c *askedConn) {
			answer(part, nil)(c)
			c.writeErr = syscall.EPIPE
		}},
		{name: "the rest is too slow", want: "silent, 1 connections, 0 idle; wrote nothing", change: func(c *askedConn) {
			answer(part, nil)(c)
			c.writeErr = os.ErrDeadlineExceeded
		}},
	} {
		t.Run(x.name, func(t *testing.T) { testAsk(t, x.change, x.there, x.want) })
	}
}

func testAsk(t *testing.T, change func(*askedConn), there bool, want string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var first *askedConn
	var engine net.Conn
	dials := 0
	c := client(t, Options{IdleTimeout: time.Hour, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		dials++
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		k := &askedConn{Conn: nc}
		accepted, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { accepted.Close(); nc.Close() })
		if first == nil {
			first, engine = k, accepted
		}
		return k, nil
	}})
	ask := func() string {
		r, err := c.Do(t.Context(), postRequest("e:1", "question"))
		switch {
		case errors.Is(err, ErrSilent):
			return "silent"
		case err != nil:
			return err.Error()
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		got := string(b)
		if err != nil {
			got += err.Error()
		}
		if v := r.UnsolicitedValue(); v != "" {
			got += ", unsolicited " + v
		}
		return got
	}
	if got := ask(); got != "hello" {
		t.Fatal(got)
	}
	request := first.written[0]
	first.written = nil
	change(first)
	if there {
		inner := first.ask
		first.ask = func(request, p []byte) (int, int, bool, error) {
			io.WriteString(engine, "stray")
			s := newSocket(first.Conn)
			testkit.Eventually(t, "no bytes on the connection", func() bool { b, _ := s.peek(); return len(b) > 0 })
			return inner(request, p)
		}
	}
	got := ask()
	idle := 0
	if p := c.peers["e:1"]; p != nil {
		idle = len(p.idle)
	}
	wrote := strings.Join(first.written, "|")
	switch wrote {
	case "":
		wrote = "nothing"
	case request[5:]:
		wrote = "the rest"
	}
	if got = fmt.Sprintf("%s, %d connections, %d idle; wrote %s", got, dials, idle, wrote); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if kept := idle == 1 && dials == 1; first.closed == kept {
		t.Errorf("it is closed: %v", first.closed)
	}
}

// brokenConn is a connection that does not send. Its engine writes something before, and closes it.
type brokenConn struct {
	*net.TCPConn
	t      *testing.T
	engine net.Conn
	wrote  string
	closes int
}

func (c *brokenConn) Write([]byte) (int, error) {
	io.WriteString(c.engine, c.wrote)
	c.engine.Close()
	s := newSocket(c.TCPConn)
	testkit.Eventually(c.t, "what it wrote, or the end", func() bool { _, err := s.peek(); return !errors.Is(err, os.ErrDeadlineExceeded) })
	return 0, syscall.EPIPE
}

func (c *brokenConn) Close() error { c.closes++; return c.TCPConn.Close() }

// TestBrokenBeforeItIsSent: on a new connection that breaks while a request is sent, what the engine
// has written is its answer; where it has written nothing, the error is why sending failed.
func TestBrokenBeforeItIsSent(t *testing.T) {
	for wrote, want := range map[string]string{
		"": "upstream: died before the first byte (e:1): broken pipe",
		"HTTP/1.1 413 Large\r\ncontent-length: 2\r\n\r\nno": "413 no",
		"HTTP":               "upstream: died before the first byte (e:1): broken pipe",
		"SMTP 220 ready\r\n": "upstream: answer is not HTTP (e:1): upstream: answer is not HTTP: its status line is \"SMTP 220 ready\"",
	} {
		for _, size := range []int{10, oneWrite + 1} {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			var all []*brokenConn
			c := client(t, Options{IdleTimeout: time.Hour, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
				if len(all) > 5 {
					return nil, errors.New("too many")
				}
				nc, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
				if err != nil {
					return nil, err
				}
				engine, err := ln.Accept()
				if err != nil {
					return nil, err
				}
				k := &brokenConn{TCPConn: nc.(*net.TCPConn), t: t, engine: engine, wrote: wrote}
				all = append(all, k)
				return k, nil
			}})
			var got string
			r, err := c.Do(t.Context(), postRequest("e:1", strings.Repeat("x", size)))
			if err != nil {
				got = err.Error()
			} else {
				b, _ := io.ReadAll(r)
				got = fmt.Sprint(r.Status, " ", string(b))
				r.Close()
			}
			if got != want || len(all) != 1 || all[0].closes == 0 || len(c.peers) != 0 {
				t.Errorf("%q, %d bytes: %s after %d connections, want %s", wrote, size, got, len(all), want)
			}
		}
	}
}
