package upstream

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// idlePresence is what is there on the newest idle connection to addr.
func idlePresence(c *Client, addr string) presence {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[addr]; p != nil && len(p.idle) > 0 {
		return p.idle[len(p.idle)-1].transport.look()
	}
	return ended
}

func whole(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", len(body), body)
}

// What an engine writes on an idle connection reaches no client; it is reported with the
// next answer, and the engine gets one request per connection from then on.
func TestUnsolicitedBytes(t *testing.T) {
	for _, x := range []struct {
		name, stray string
		count       int
		single      bool
	}{
		{"whole answer", whole("another client's"), 1, true},
		{"one byte", "\n", 1, true},
		{"half a head", "HTTP/1.1 200 OK\r\ncontent-le", 1, true},
		{"408 of a server that closes", "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n", 0, false},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", x.name, secure), func(t *testing.T) {
				var options Options
				wrap := func(c net.Conn) net.Conn { return c }
				if secure {
					served := httptest.NewUnstartedServer(nil)
					served.StartTLS()
					defer served.Close()
					config := served.TLS.Clone()
					config.NextProtos = nil
					wrap = func(c net.Conn) net.Conn { return tls.Server(c, config) }
					ours := served.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
					ours.ServerName = "example.com"
					options.TLS = func(string) *tls.Config { return ours }
				}
				stray := make(chan struct{})
				e := newWrappedEngine(t, wrap, func(c net.Conn, _ *http.Request, body []byte, _ int) bool {
					io.WriteString(c, whole(string(body)))
					if string(body) == "stray" {
						<-stray
						io.WriteString(c, x.stray)
						<-stray
						return false
					}
					return true
				})
				defer close(stray)
				c := client(t, options)
				ask := func(body string) *Response {
					t.Helper()
					q := postRequest(e.addr, body)
					q.Secure = secure
					r, err := c.Do(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					if b, err := io.ReadAll(r); string(b) != body || err != nil {
						t.Errorf("%q for %q, %v", b, body, err)
					}
					r.Close()
					return r
				}
				ask("stray")
				stray <- struct{}{}
				testkit.Eventually(t, "no stray bytes on the connection", func() bool { return idlePresence(c, e.addr) != silent })
				for i, body := range []string{"a", "b", "c"} {
					r := ask(body)
					if want := i == 0 && x.single; r.FirstUnsolicited != want || r.Unsolicited > 0 != want {
						t.Errorf("answer %d reports %d, first %v", i, r.Unsolicited, r.FirstUnsolicited)
					}
				}
				want := int32(2)
				if x.single {
					want = 4
				}
				if n := e.conns.Load(); n != want {
					t.Errorf("%d connections, want %d", n, want)
				}
			})
		}
	}
}

// Bytes behind the end of an answer are unsolicited too.
func TestTooLongAnswer(t *testing.T) {
	e := assertAnswer(t, okHello+"and more")
	c := client(t, Options{})
	for i := range 3 {
		r, err := c.Do(t.Context(), postRequest(e.addr, ""))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		r.Close()
		if r.FirstUnsolicited != (i == 1) || r.Unsolicited != min(i, 1) {
			t.Errorf("answer %d: %d, %v", i, r.Unsolicited, r.FirstUnsolicited)
		}
	}
}

// A new engine at an address is not blamed for the one before.
func TestMarkEndsWithTheEngine(t *testing.T) {
	c := client(t, Options{})
	e := assertAnswer(t, okHello)
	c.markUnsolicited(e.addr)
	const gone = "127.0.0.1:1" // where no engine listens
	c.markUnsolicited(gone)
	if _, err := c.Do(t.Context(), postRequest(gone, "")); !errors.Is(err, ErrDial) {
		t.Error(err)
	}
	for i := range maxMarked + 50 {
		c.markUnsolicited(fmt.Sprintf("10.0.0.1:%d", 1000+i))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers[gone] != nil || len(c.peers) != maxMarked || c.marked != maxMarked || int(c.unreported.Load()) != maxMarked {
		t.Errorf("%v, %d addresses, %d marked, %d unreported", c.peers[gone], len(c.peers), c.marked, c.unreported.Load())
	}
}

// TestMarksOfOpenConnections: of too many marked addresses those with open connections keep their
// marks, and so does the one that was marked last.
func TestMarksOfOpenConnections(t *testing.T) {
	c := New(Options{})
	var open []*conn
	for i := range maxMarked {
		k := &conn{addr: fmt.Sprintf("10.0.0.1:%d", 1000+i)}
		c.markUnsolicited(k.addr)
		c.peerAt(k.addr).conns[k] = struct{}{}
		open = append(open, k)
	}
	marked := func(addr string) bool { p := c.peers[addr]; return p != nil && p.single }
	check := func(when string, want int, addrs ...string) {
		t.Helper()
		for _, k := range open {
			addrs = append(addrs, k.addr)
		}
		for _, addr := range addrs {
			if !marked(addr) {
				t.Errorf("%s: %s has no mark", when, addr)
			}
		}
		if c.marked != want || len(c.peers) != want || int(c.unreported.Load()) != want {
			t.Errorf("%s: %d marked of %d, %d unreported, want %d", when, c.marked, len(c.peers), c.unreported.Load(), want)
		}
	}
	c.markUnsolicited("newest")
	check("all have connections", maxMarked+1, "newest")
	c.markUnsolicited("newer")
	check("another has none", maxMarked+1, "newer")
	ended := open[7]
	open = append(open[:7], open[8:]...)
	c.forget(ended)
	check("its last connection has ended", maxMarked+1, "newer", ended.addr)
	c.markUnsolicited("last")
	check("two others have none", maxMarked+1, "last")
	if marked(ended.addr) == marked("newer") {
		t.Error("not one of those without connections has lost its mark")
	}
}

// While a large body is sent on a connection that was used before, what comes is no
// answer to it: it goes on another connection, where an engine may answer early.
func TestBytesWhileSending(t *testing.T) {
	for _, early := range []string{"", "413 Large", "200 OK", "413 once"} { // once: then it reads all before
		t.Run("early answer "+early, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer ln.Close()
			serve := func(c net.Conn, first bool) {
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					if r.ContentLength < 100 {
						io.WriteString(c, whole("small"))
						continue
					}
					if early == "413 once" && !first {
						io.Copy(io.Discard, r.Body)
					}
					if early != "" {
						io.WriteString(c, "HTTP/1.1 "+early+"\r\ncontent-length: 0\r\n\r\n")
					} else if first {
						io.WriteString(c, whole("another client's"))
					}
					io.Copy(io.Discard, r.Body)
					if early == "" {
						io.WriteString(c, whole("large"))
					}
				}
			}
			wg.Go(func() {
				for first := true; ; first = false {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					wg.Go(func() { serve(c, first) })
				}
			})
			c := client(t, Options{})
			defer c.Close()
			ask := func(size int) (int, string, int) {
				r, err := c.Do(t.Context(), postRequest(ln.Addr().String(), strings.Repeat("x", size)))
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				b, _ := io.ReadAll(r)
				return r.Status, string(b), r.Unsolicited
			}
			if _, b, _ := ask(10); b != "small" {
				t.Error(b)
			}
			status, b, n := ask(32 << 20)
			if early != "" && (!strings.HasPrefix(early, fmt.Sprint(status)) || n != 0 || c.marked != 0) || early == "" && (b != "large" || n != 1) {
				t.Errorf("%d %q, %d unsolicited", status, b, n)
			}
		})
	}
}

// An engine that reads a request on a connection that was used before and works on it
// before it closes has run it: it is not sent again.
func TestNoRetryAfterWork(t *testing.T) {
	var seen atomic.Int32
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
		seen.Add(1)
		if n == 0 {
			io.WriteString(c, okHello)
			return true
		}
		<-time.After(2 * atOnce)
		return false
	})
	c := client(t, Options{})
	r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(r)
	r.Close()
	_, err = c.Do(t.Context(), postRequest(e.addr, "{}"))
	if x, ok := errors.AsType[*Error](err); !ok || x.Kind != ErrNoAnswer || x.Resent || seen.Load() != 2 {
		t.Errorf("%v, %d requests for 2", err, seen.Load())
	}
}

func TestRedirects(t *testing.T) {
	const path = "/v1/chat/completions"
	for _, x := range []struct {
		name, path, location string // ADDR is the engine's
		status               int
		followed             string
	}{
		{"FastAPI's", path, "http://ADDR" + path + "/", 307, path + "/"},
		{"308", path, "http://ADDR" + path + "/", 308, path + "/"},
		{"path only", path, path + "/", 307, path + "/"},
		{"without a slash", path + "/", path, 307, path},
		{"query", path + "?a=b", path + "/?a=b", 307, path + "/?a=b"},
		{"other query", path + "?a=b", path + "/?a=c", 307, ""},
		{"other host", path, "http://example.com" + path + "/", 307, ""},
		{"other name of the host", path, "http://localhost:1" + path + "/", 307, ""},
		{"other scheme", path, "https://ADDR" + path + "/", 307, ""},
		{"user", path, "http://u:p@ADDR" + path + "/", 307, ""},
		{"other path", path, "http://ADDR/v2/chat/completions/", 307, ""},
		{"two slashes", path, "http://ADDR" + path + "//", 307, ""},
		{"escaped", path, "http://ADDR/v1%2fchat/completions/", 307, ""},
		{"302", path, "http://ADDR" + path + "/", 302, ""},
		{"no location", path, "", 307, ""},
		{"endless", path, path + "/ then " + path, 307, path + "/"},
	} {
		t.Run(x.name, func(t *testing.T) {
			location, second, endless := strings.Cut(x.location, " then ")
			var seen []string
			var e *engine
			e = newEngine(t, func(c net.Conn, r *http.Request, body []byte, _ int) bool {
				seen = append(seen, r.RequestURI)
				if len(seen) == 1 {
					fmt.Fprintf(c, "HTTP/1.1 %d R\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n", x.status, strings.ReplaceAll(location, "ADDR", e.addr))
				} else if endless {
					fmt.Fprintf(c, "HTTP/1.1 307 R\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n", second)
				} else {
					io.WriteString(c, whole(r.Method+" "+string(body)))
				}
				return true
			})
			q := postRequest(e.addr, "hello")
			q.Path = x.path
			r, err := client(t, Options{}).Do(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			b, _ := io.ReadAll(r)
			switch {
			case x.followed == "" && (r.Status != x.status || len(seen) != 1):
				t.Errorf("status %d, %q", r.Status, seen)
			case x.followed != "" && (len(seen) != 2 || seen[1] != x.followed):
				t.Errorf("%q", seen)
			case x.followed != "" && !endless && string(b) != "POST hello":
				t.Errorf("%q", b)
			}
		})
	}
}

// What was found before a redirect is reported with the answer behind it, which adds its own.
func TestReportBeforeRedirect(t *testing.T) {
	var requests int
	e := newEngine(t, func(c net.Conn, r *http.Request, _ []byte, _ int) bool {
		requests++
		switch {
		case requests == 1:
			io.WriteString(c, okHello+" and more")
		case requests == 3:
			io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n"+UnsolicitedHeader+": 2\r\n\r\nhello")
		case requests == 7:
			io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n"+UnsolicitedHeader+": 4 first\r\n\r\nhello")
		case strings.HasSuffix(r.URL.Path, "/"):
			io.WriteString(c, okHello)
		default:
			fmt.Fprintf(c, "HTTP/1.1 307 R\r\nlocation: %s/\r\ncontent-length: 0\r\n\r\n", r.URL.Path)
		}
		return true
	})
	c := client(t, Options{})
	for i, want := range []int{0, 3, 0, 4} {
		r, err := c.Do(t.Context(), postRequest(e.addr, "x"))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		if r.Status != 200 || r.Unsolicited != want || r.FirstUnsolicited != (want > 0) {
			t.Errorf("answer %d: %d, %d found, first %v", i+1, r.Status, r.Unsolicited, r.FirstUnsolicited)
		}
		r.Close()
	}
}

// BenchmarkLook is the check of an idle connection before a request, and BenchmarkDoTCP a
// whole exchange over loopback, beside which it stands.
func BenchmarkLook(b *testing.B) {
	e := assertAnswer(b, okHello)
	c := client(b, Options{})
	r, err := c.Do(b.Context(), postRequest(e.addr, ""))
	if err != nil {
		b.Fatal(err)
	}
	k := r.k
	io.ReadAll(r)
	r.Close()
	b.ReportAllocs()
	for b.Loop() {
		if k.transport.look() != silent {
			b.Fatal("it is not silent")
		}
	}
}

func BenchmarkDoTCP(b *testing.B) {
	e := assertAnswer(b, okHello)
	c := client(b, Options{})
	p := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Do(b.Context(), postRequest(e.addr, "{}"))
		for err == nil {
			_, err = r.Read(p)
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		r.Close()
	}
	b.ReportMetric(float64(e.conns.Load()), "conns")
}

// The answer that a stray one displaces reaches no other client.
func TestDisplacedAnswer(t *testing.T) {
	e := newEngine(t, func(c net.Conn, _ *http.Request, body []byte, _ int) bool {
		if string(body) == "hit" {
			io.WriteString(c, whole("stray"))
		}
		<-time.After(20 * time.Millisecond)
		_, err := io.WriteString(c, whole(string(body)))
		return err == nil
	})
	c := client(t, Options{})
	for i := range 2 * minAnswers {
		body := fmt.Sprint("request ", i)
		if i == minAnswers+2 {
			body = "hit"
		}
		r, err := c.Do(t.Context(), postRequest(e.addr, body))
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(r); string(b) != body && body != "hit" {
			t.Errorf("%q for %q", b, body)
		}
		r.Close()
	}
}
