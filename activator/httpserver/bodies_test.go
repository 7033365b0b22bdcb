package httpserver

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// Large bodies take at most their Budget of memory together; small ones are served beside
// them; and memory is released however a request ends.
func TestBodiesTogetherAreBounded(t *testing.T) {
	const budget, size = 1 << 20, 300 << 10
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler, Bodies: NewBudget(budget, budget)})
		head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", size)
		full := func(rest string) {
			t.Helper()
			c := s.dial()
			c.send(rest)
			r, b := c.ok("POST")
			if c.Close(); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || !strings.Contains(b, "queue_full") || !r.Close {
				t.Errorf("%d %v %s", r.StatusCode, r.Header, b)
			}
		}
		var held []*client
		for i := range 3 {
			c := s.dial()
			c.send(head + strings.Repeat("x", size-1)) // one byte is missing
			held = append(held, c)
			s.await(func(w *conn) bool { return w.s.o.Bodies.Used() == int64(i+1)*size })
		}
		full(head + strings.Repeat("x", size))
		full("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size)))
		small := s.dial()
		for range 2 {
			small.send(postRequest("small"))
			if r, b := small.ok("POST"); r.StatusCode != 200 || !strings.Contains(b, "body=5:") {
				t.Errorf("beside full buffers: %d %s", r.StatusCode, b)
			}
		}
		// One sends the rest, one leaves: their memory is free again.
		held[0].send("x" + get)
		if r, _ := held[0].ok("POST"); r.StatusCode != 200 {
			t.Errorf("a body that was counted: %d", r.StatusCode)
		}
		held[0].ok("GET")
		held[1].Close()
		s.await(func(w *conn) bool { return w.s.o.Bodies.Used() <= budget-2*size })
		c := s.dial()
		c.send(head + strings.Repeat("x", size))
		if r, _ := c.ok("POST"); r.StatusCode != 200 {
			t.Errorf("after room was made: %d", r.StatusCode)
		}
		for _, c := range append(held, c) {
			c.Close()
		}
		s.await(func(w *conn) bool { return w.s.o.Bodies.Used() == 0 })
	})
}

// A body that is refused while it grows holds no memory any more, before its answer is written:
// of bodies that grow beside each other not all are refused.
func TestRefusedBodyIsGivenBack(t *testing.T) {
	bodies := NewBudget(700<<10, 700<<10)
	for name, counter := range map[string]bodyCounter{
		"a connection": &bodyMemory{Charge: Charge{Budget: bodies, Account: "a"}},
		"net/http":     &handlerExchange{charge: Charge{Budget: bodies, Account: "a"}},
	} {
		_, err := readBody(strings.NewReader(strings.Repeat("x", 2<<20)), nil, 2<<20, 4<<20, counter)
		if err != ErrBudgetUsed || bodies.Used() != 0 {
			t.Errorf("%s: %v, and %d bytes are held", name, err, bodies.Used())
		}
	}
}

// A budget refuses what is too much, all together and for one account, and counts
// nothing for it.
func TestBudget(t *testing.T) {
	b := NewBudget(100, 60)
	for _, step := range []struct {
		account string
		more    int64
		want    error
		used    int64
	}{
		{"a", 60, nil, 60},
		{"a", 1, ErrShareUsed, 60},
		{"b", 40, nil, 100},
		{"b", 1, ErrBudgetUsed, 100},
		{"a", -60, nil, 40},
		{"a", 61, ErrBudgetUsed, 40},
		{"b", 20, nil, 60},
		{"b", 1, ErrShareUsed, 60},
		{"b", -60, nil, 0},
	} {
		if err := b.Add(step.account, step.more); err != step.want || b.Used() != step.used {
			t.Errorf("%s %+d: %v, %d used; want %v, %d", step.account, step.more, err, b.Used(), step.want, step.used)
		}
	}
	if len(b.accounts) != 0 {
		t.Errorf("accounts without bytes are kept: %v", b.accounts)
	}
}

// one account has at most its share of the memory for bodies: a key, or an address
// where there is no key. Others are served meanwhile.
func TestShareOfBodies(t *testing.T) {
	const size = 300 << 10
	for _, f := range fronts {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			held := make(chan struct{}, 4)
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			authorize := func(req *Request, _ *Response) (string, bool) { return req.Header("X-Key"), true }
			defer f.serve(Options{Authorize: authorize, Bodies: NewBudget(1<<20, 700<<10), Handler: func(*Request, *Response) {
				held <- struct{}{}
				<-release
			}}, tcp)()
			s := &testServer{t: t, addr: tcp.Addr().String()}
			post := func(key string) *client {
				c := s.dial()
				c.send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nX-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, size, strings.Repeat("x", size)))
				return c
			}
			waiting := []*client{post("a"), post("a")}
			<-held
			<-held
			if r, b := post("a").ok("POST"); r.StatusCode != 429 || r.Header.Get("Retry-After") == "" ||
				!strings.Contains(b, "rate_limit_exceeded") {
				t.Errorf("a third body of the key: %d %v %s", r.StatusCode, r.Header, b)
			}
			waiting = append(waiting, post("")) // counts for the address
			<-held
			if r, b := post("b").ok("POST"); r.StatusCode != 503 {
				t.Errorf("beyond all together: %d %s", r.StatusCode, b)
			}
			close(release)
			for _, c := range waiting {
				if r, _ := c.ok("POST"); r.StatusCode != 200 {
					t.Errorf("a body within the share: %d", r.StatusCode)
				}
			}
		})
	}
}

// heldStream yields the given parts, one each time that it is let go.
type heldStream struct {
	parts chan string
	out   string
}

func (s *heldStream) Read(p []byte) (int, error) {
	if s.out == "" {
		part, ok := <-s.parts
		if !ok {
			return 0, io.EOF
		}
		s.out = part
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

func (s *heldStream) Close() error  { return nil }
func (s *heldStream) Buffered() int { return len(s.out) }

// What a stream has at once goes out in one write, up to a bound, and waits for nothing else.
func TestBufferedBytesGoOutTogether(t *testing.T) {
	ln := httpservertest.Listen()
	parts := make(chan string)
	srv := NewFiberServer(Options{Handler: func(_ *Request, res *Response) { res.Stream = &heldStream{parts: parts} }})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	conn, err := ln.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	p := make([]byte, 1<<20)
	for _, x := range []struct{ size, writes int }{{10 << 10, 1}, {100, 1}, {4 << 10, 1}, {60 << 10, 2}, {1, 1}} {
		parts <- strings.Repeat("x", x.size)
		got, writes := 0, 0
		for ; got < x.size; writes++ {
			n, err := conn.Read(p) // as much as one write has
			if err != nil {
				t.Fatal(err)
			}
			got += strings.Count(string(p[:n]), "x")
		}
		if got != x.size || writes != x.writes {
			t.Errorf("%d bytes of %d in %d writes, want %d", got, x.size, writes, x.writes)
		}
	}
	close(parts)
	if b, err := io.ReadAll(io.LimitReader(conn, 5)); string(b) != "0\r\n\r\n" {
		t.Errorf("the end is %q, %v", b, err)
	}
	conn.Close()
	srv.Shutdown(t.Context())
	<-done
}
