package httpserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// M11, A-11: where there is no room for one more connection, the one that is idle longest
// ends; where none is idle, the new one is refused. Both for one address and for all.
func TestConnectionsAreBounded(t *testing.T) {
	for _, row := range []struct {
		name            string
		max, perAddress int
		status          int
		reason          string
	}{{"all", 3, 100, 503, "total"}, {"one address", 100, 3, 429, "address"}} {
		t.Run(row.name, func(t *testing.T) {
			forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
				var mu sync.Mutex
				dropped := map[string]int{}
				bound := NewConnections(row.max, row.perAddress, func(labels ...string) {
					mu.Lock()
					defer mu.Unlock()
					dropped[labels[0]]++
				})
				busy, release := make(chan struct{}, 3), make(chan struct{})
				s := serve(Options{Connections: bound, Handler: func(req *Request, res *Response) {
					if req.Path == "/wait" {
						busy <- struct{}{}
						<-release
					}
				}})
				first := s.dial()
				first.send(get)
				first.ok("GET")
				held := []*client{s.dial(), s.dial()}
				isBusy := func() {
					t.Helper()
					select {
					case <-busy:
					case <-time.After(testTimeout):
						t.Fatal("a request did not come to the handler")
					}
				}
				for _, c := range held {
					c.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
					isBusy()
				}
				testkit.Eventually(t, "the first one is idle", func() bool { return bound.idle() > 0 }) // a moment after its answer
				fourth := s.dial()                                                                      // the first one, which is idle, makes room
				fourth.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
				isBusy()
				if !first.ended() {
					t.Error("the idle connection lives on")
				}
				fifth := s.dial() // none is idle
				if r, b := fifth.ok("GET"); r.StatusCode != row.status || r.Header.Get("Retry-After") == "" || !fifth.ended() {
					t.Errorf("one too many: %d %v %s", r.StatusCode, r.Header, b)
				}
				close(release)
				for _, c := range append(held, fourth) {
					if r, _ := c.ok("GET"); r.StatusCode != 200 {
						t.Errorf("a request under way was answered %d", r.StatusCode)
					}
					c.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				if dropped["idle"] != 1 || dropped[row.reason] != 1 || len(dropped) != 2 {
					t.Errorf("counted: %v", dropped)
				}
				testkit.Eventually(t, "closed connections are not counted", func() bool {
					bound.mu.Lock()
					defer bound.mu.Unlock()
					return len(bound.open)+len(bound.addresses) == 0
				})
			})
		})
	}
}

// beyondServer is a server whose one connection of an address is busy.
type beyondServer struct {
	*testServer
	bound   *Connections
	held    *client
	release chan struct{}
}

func newBeyondServer(serve func(Options) *testServer, delay time.Duration) *beyondServer {
	b := &beyondServer{bound: NewConnections(1000, 1, nil), release: make(chan struct{})}
	b.bound.delay = delay
	busy := make(chan struct{})
	b.testServer = serve(Options{Connections: b.bound, Handler: func(req *Request, res *Response) {
		if req.Path == "/wait" {
			busy <- struct{}{}
			<-b.release
		}
	}})
	b.held = b.dial()
	b.held.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
	<-busy
	return b
}

func (b *beyondServer) refuses(c *client, what string) {
	b.t.Helper()
	r, text := c.ok("GET")
	if r.StatusCode != 429 || r.Header.Get("Retry-After") == "" || !strings.Contains(text, "Your address") || !c.ended() {
		b.t.Errorf("%s: %d %v %s", what, r.StatusCode, r.Header, text)
	}
}

// end checks that the request under way is answered, and that no connection counts then.
func (b *beyondServer) end() {
	close(b.release)
	if r, _ := b.held.ok("GET"); r.StatusCode != 200 {
		b.t.Errorf("a request under way was answered %d", r.StatusCode)
	}
	b.held.Close()
	testkit.Eventually(b.t, "closed connections are not counted", func() bool {
		b.bound.mu.Lock()
		defer b.bound.mu.Unlock()
		return len(b.bound.open)+len(b.bound.addresses)+len(b.bound.beyond)+b.bound.refused == 0
	})
}

// C12: beyond the bound of its address a client may ask for the server's health, and is
// refused everything else, whole, whenever it sends its request.
func TestHealthBeyondTheBound(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := newBeyondServer(serve, closeDelay)
		for range 3 * maxBeyond { // each leaves room for the next
			for _, path := range []string{"/livez", "/healthz", "/readyz", "/readyz?verbose"} {
				c := s.dial()
				c.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")
				if r, _ := c.ok("GET"); r.StatusCode != 200 || !c.ended() {
					t.Fatalf("%s: %d", path, r.StatusCode)
				}
				c.Close()
			}
			c := s.dial()
			c.send(get)
			s.refuses(c, "another path")
			c.Close()
		}
		body := s.dial()
		body.send(postRequest(strings.Repeat("x", 1<<20)))
		s.refuses(body, "a body")
		body = s.dial()
		body.send("POST /readyz HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx")
		s.refuses(body, "a body for the health")
		s.refuses(s.dial(), "silence")
		s.end()
	})
}

// More clients than may ask are refused, and read that also behind what they send meanwhile.
func TestManyBeyondTheBound(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := newBeyondServer(serve, testTimeout) // on whatever machine, all is sent before the connections end
		many := make([]*client, 3*maxBeyond)
		for i := range many {
			many[i] = s.dial()
		}
		for range 2 {
			for _, c := range many {
				c.send("GET / HTTP/1.1\r\nHost: h\r\n") // in pieces, also behind the refusal
				c.send("\r\n")
			}
		}
		for _, c := range many {
			s.refuses(c, "one of many")
			c.Close()
		}
		s.end()
	})
}

// A connection that gets a request while it is ended to make room either stays, or does not
// begin the request: its client could not tell what became of it.
func TestEndedConnectionBeginsNoRequest(t *testing.T) {
	body := strings.Repeat("x", 100<<10)
	for name, request := range map[string]string{"in one piece": get, "with a body": postRequest(body)} {
		for _, b := range bodies {
			t.Run(b.name+"/"+name, func(t *testing.T) {
				tcp, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				ln := httpservertest.RaceListener{Listener: tcp, Accepted: make(chan *httpservertest.RaceConn, 2)}
				var calls atomic.Int32
				called := make(chan struct{}, 10)
				srv := b.make(Options{Connections: NewConnections(1, 1, nil), Handler: func(req *Request, res *Response) {
					calls.Add(1)
					called <- struct{}{}
				}})
				go srv.Serve(ln)
				defer srv.Shutdown(t.Context())
				s := &testServer{t: t, addr: tcp.Addr().String()}
				first := s.dial()
				inner := <-ln.Accepted
				inner.OnClose(func() {
					sent := make(chan struct{})
					go func() { io.WriteString(first, request); close(sent) }()
					select {
					case <-called:
						t.Error("a request began on a connection that is ended")
					case <-inner.Again: // the server gives it up
					case <-time.After(testTimeout):
						t.Error("the server neither began the request nor gave its connection up")
					}
					inner.Conn.Close()
					<-sent
				})
				second := s.dial()
				second.send(get)
				if r, b := second.ok("GET"); r.StatusCode != 200 {
					t.Errorf("%d %s", r.StatusCode, b)
				}
				if n := calls.Load(); n != 1 {
					t.Errorf("the handler was called %d times, want once", n)
				}
			})
		}
	}
}

// A connection that is busy is never ended, also where it was idle when it was chosen, and
// one that is ended stays so.
func TestBusyConnectionIsNotEnded(t *testing.T) {
	l := NewConnections(100, 100, nil)
	var stop atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !stop.Load() {
				c, other := net.Pipe()
				s, _ := l.add(c)
				for s.SetIdle(false) {
					runtime.Gosched()
					if s.Ended() || !s.SetIdle(true) {
						t.Error("a busy connection was ended")
					}
					runtime.Gosched()
				}
				if s.SetIdle(true) || s.SetIdle(false) || !s.Ended() {
					t.Error("an ended connection lives again")
				}
				c.Close()
				other.Close()
			}
		})
	}
	end := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.endIdle(netip.Prefix{})
	}
	for ended := 0; ended < 500 && !t.Failed(); ended += end() {
		runtime.Gosched()
	}
	stop.Store(true)
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
			end()
			runtime.Gosched()
		}
	}
}

// A client under TLS that does not read does not hold up the ending of its connection,
// during which no other connection is accepted.
func TestEndIdleUnderTLS(t *testing.T) {
	ts := httptest.NewUnstartedServer(nil)
	ts.StartTLS()
	certificates := ts.TLS.Certificates
	ts.Close()
	synctest.Test(t, func(t *testing.T) {
		in, out := net.Pipe()
		defer out.Close()
		server, client := tls.Server(in, &tls.Config{Certificates: certificates, SessionTicketsDisabled: true}),
			tls.Client(out, &tls.Config{InsecureSkipVerify: true})
		shaken := make(chan error)
		go func() { shaken <- client.Handshake() }()
		if err := errors.Join(server.Handshake(), <-shaken); err != nil {
			t.Fatal(err)
		}
		c := NewConnections(1, 1, nil)
		c.add(server)
		began := time.Now()
		other, end := net.Pipe()
		defer end.Close()
		if s, reason := c.add(other); s == nil {
			t.Error(reason)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("accepted after %s", took)
		}
	})
}

// idle counts the idle connections.
func (c *Connections) idle() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.open {
		if s.idle.Load() > 0 {
			n++
		}
	}
	return n
}

func TestPrefixOf(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "::1": "::/64",
	} {
		if got := prefixOf(&net.TCPAddr{IP: net.ParseIP(a), Port: 1}); got.String() != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}

// F34: where descriptors are exhausted, connections that are idle longest end, others are
// served, and a request under way goes on.
func TestNoDescriptors(t *testing.T) {
	if os.Getenv("THAW_TEST_DESCRIPTORS") != "" {
		serveWithFewDescriptors(t)
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestNoDescriptors$")
	child.Env = append(os.Environ(), "THAW_TEST_DESCRIPTORS=1")
	child.Stderr = os.Stderr
	in, _ := child.StdinPipe()
	out, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer in.Close()
	lines := bufio.NewScanner(out)
	s := &testServer{t: t}
	for s.addr == "" && lines.Scan() {
		s.addr, _ = strings.CutPrefix(lines.Text(), "listening on ")
	}
	go io.Copy(io.Discard, out)
	streaming := s.dial()
	streaming.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
	if l, err := streaming.br.ReadString('\n'); err != nil || !strings.Contains(l, "200") {
		t.Fatalf("%q %v", l, err)
	}
	for range 100 {
		s.dial() // says nothing
	}
	for range 5 {
		c := s.dial()
		c.send(get)
		if r, _ := c.ok("GET"); r.StatusCode != 200 {
			t.Errorf("a request beside silent connections: %d", r.StatusCode)
		}
	}
	streaming.send("x") // ends the stream
	if b, err := io.ReadAll(streaming.br); err != nil || !strings.Contains(string(b), "the end") {
		t.Errorf("the request under way: %q %v", b, err)
	}
}

// serveWithFewDescriptors serves, with 32 more descriptors than it has, until its standard
// input ends. /stream ends when its client has sent a byte.
func serveWithFewDescriptors(t *testing.T) {
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(len(open) + 32)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		t.Fatal(err)
	}
	// Silent connections do not time out within the test.
	srv := NewFiberServer(Options{HeadTimeout: time.Hour, IdleTimeout: time.Hour, Connections: NewConnections(1000, 1000, nil),
		Handler: func(req *Request, res *Response) {
			if req.Path != "/stream" {
				return
			}
			c, sent := req.from.(*conn), false
			res.Close = true
			res.Stream = newStream(func(p []byte) (int, error) {
				if !sent {
					sent = true
					return copy(p, "begun\n"), nil
				}
				c.Conn.Read(make([]byte, 1))
				return copy(p, "the end\n"), io.EOF
			})
		}})
	go srv.Serve(ln)
	fmt.Printf("\nlistening on %s\n", ln.Addr())
	io.Copy(io.Discard, os.Stdin)
	srv.Shutdown(t.Context())
}
