package httpserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

const upgradeHead = "GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"

// upgradeOptions makes connections of /ws/ echo lines.
func upgradeOptions(serve func(*Upgraded)) Options {
	return Options{
		Upgrades: func(path string) bool { return strings.HasPrefix(path, "/ws/") },
		Handler: func(q *Request, r *Response) {
			if r.Body = []byte("plain"); q.AsksWebSocket {
				r.Upgrade = serve
			}
		},
	}
}

func echoLines(u *Upgraded) {
	fmt.Fprint(u, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	in := bufio.NewReader(u)
	for {
		l, err := in.ReadString('\n')
		if err != nil || l == "panic\n" {
			if err == nil {
				panic(l)
			}
			return
		}
		io.WriteString(u, l)
	}
}

func (c *client) wantLine(want string) {
	c.t.Helper()
	if l, err := c.br.ReadString('\n'); err != nil || l != want {
		c.t.Fatalf("%q %v, want %q", l, err, want)
	}
}

func TestUpgrade(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(upgradeOptions(echoLines))
		c := s.dial()
		c.send("GET /ws/x HTTP/1.1\r\nHost: h\r\n\r\n" + upgradeHead + "one\ntwo")
		if _, b := c.ok("GET"); b != "plain" {
			t.Fatal(b)
		}
		c.wantLine("HTTP/1.1 101 Switching Protocols\r\n")
		c.wantLine("\r\n")
		c.wantLine("one\n")
		c.send("\n")
		c.wantLine("two\n")
		c.send("panic\n")
		if !c.ended() {
			t.Error("the connection goes on behind a panic")
		}
		for _, head := range []string{
			"GET /v1/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: tls/1.0\r\n\r\n",
			"GET /ws/x HTTP/1.0\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"POST /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
			"GET /ws/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		} {
			c := s.dial()
			c.send(head)
			if r, b := c.ok("GET"); r.StatusCode != 400 || strings.Contains(b, "Upgrades are not served") == strings.Contains(head, "/ws/x") ||
				strings.Contains(b, "A WebSocket begins with GET over HTTP/1.1") != strings.Contains(head, "/ws/x") {
				t.Errorf("%q: %d %s", head, r.StatusCode, b)
			}
		}
	})
}

// TestUpgradedDrain: a drain tells upgraded connections, waits for them, and cuts them at
// its deadline. Their slots are never idle.
func TestUpgradedDrain(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		told, ended := make(chan struct{}, 2), make(chan error, 2)
		o := upgradeOptions(func(u *Upgraded) {
			u.OnDrain(func() { told <- struct{}{} })
			echoLines(u)
			ended <- u.Context().Err()
		})
		o.Connections = NewConnections(2, 2, func(...string) {})
		o.CutGrace = time.Millisecond
		s := serve(o)
		first, second := s.dial(), s.dial()
		for _, c := range []*client{first, second} {
			c.send(upgradeHead + "one\n")
			c.wantLine("HTTP/1.1 101 Switching Protocols\r\n")
			c.wantLine("\r\n")
			c.wantLine("one\n")
		}
		if r, _ := s.dial().ok("GET"); r.StatusCode != 429 && r.StatusCode != 503 {
			t.Errorf("a third connection: %d", r.StatusCode)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.once.Do(func() { done <- s.srv.Shutdown(ctx) })
		<-told
		<-told
		first.send("still\n")
		first.wantLine("still\n")
		first.Close()
		<-ended
		cancel()
		if err := <-done; err == nil {
			t.Error("the drain cut nothing")
		}
		if err := <-ended; !errors.Is(err, ErrDraining) {
			t.Errorf("the context ended with %v", err)
		}
		if !second.ended() {
			t.Error("the connection is open behind the drain")
		}
	})
}

// TestOwnRequest: a request of this program's own has its head, body and end.
func TestOwnRequest(t *testing.T) {
	ctx := &Context{}
	q := NewRequest(nil, "POST", "/x", []Field{{"A", "1"}, {"b", "2"}}, []byte("hi"), ctx, func() bool { return true })
	n := 0
	for range q.Fields {
		n++
		break
	}
	if q.Header("a") != "1" || q.Header("B") != "2" || q.Header("c") != "" || n != 1 || !q.Draining() || q.HTTP10 || q.AsksWebSocket ||
		string(q.Body) != "hi" {
		t.Errorf("%+v", q)
	}
	ctx.End(ErrGone)
	if q.Context().Err() != ErrGone {
		t.Error("its context goes on")
	}
}
