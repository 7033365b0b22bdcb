package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// A request that is answered without its body, which never comes, ends within 2 s;
// where the body came, the connection serves the next request.
func TestUnreadBodies(t *testing.T) {
	for _, row := range []struct{ name, head, want string }{
		{"no such host", "POST /x HTTP/1.1\r\nHost: other\r\n", "404"},
		{"no such route", "POST /other HTTP/1.1\r\nHost: paths\r\n", "404"},
		{"to https", "POST /x HTTP/1.1\r\nHost: secure\r\n", "308"},
		{"leads to nothing", "POST /x HTTP/1.1\r\nHost: nowhere\r\n", "503"},
		{"the control API from outside", "POST /api/v1/x HTTP/1.1\r\nHost: other\r\n", "404"},
	} {
		for framing, parts := range map[string][2]string{"length": {"Content-Length: 5\r\n\r\n", "hello"}, "chunked": {"Transfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"}} {
			t.Run(row.name+"/"+framing, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					book, err := auth.Open(t.TempDir() + "/keys.json")
					if err != nil {
						t.Fatal(err)
					}
					engines := upstream.New(upstream.Options{})
					defer engines.Close()
					w := &world{t: t, moved: make(chan struct{}, 1)}
					g := New(Options{Leader: func() string { return "" },
						Activator: activator.New(activator.Options{Waker: w, Keys: book, Limits: &w.limits, Engines: engines, Open: true})})
					g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
						{Name: "secure", Secure: true, Paths: []controlstream.Path{{Splits: splitTo("a:1")}}},
						{Name: "paths", Paths: []controlstream.Path{{Prefix: "/only", Splits: splitTo("a:1")}}},
						{Name: "nowhere", Paths: []controlstream.Path{{}}},
					}})
					ln := httpservertest.Listen()
					ended := make(chan struct{})
					go func() { g.Serve(ln, nil); close(ended) }()
					defer func() { g.Shutdown(t.Context()); <-ended }()

					c, err := ln.Dial(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					br := bufio.NewReader(c)
					for range 2 { // the connection is kept, also for longer
						io.WriteString(c, row.head+parts[0]+parts[1])
						res, err := http.ReadResponse(br, nil)
						if err != nil {
							t.Fatal(err)
						}
						io.Copy(io.Discard, res.Body)
						if !strings.HasPrefix(res.Status, row.want) || res.Close {
							t.Fatalf("%s, close: %v", res.Status, res.Close)
						}
						time.Sleep(time.Minute)
					}
					began := time.Now()
					io.WriteString(c, row.head+parts[0])
					defer time.AfterFunc(time.Hour, func() { c.Close() }).Stop()
					b, _ := io.ReadAll(br)
					if took := time.Since(began); took > 3*time.Second || !strings.HasPrefix(string(b), "HTTP/1.1 "+row.want) {
						t.Errorf("ended after %v: %.100q", took, b)
					}
				})
			})
		}
	}
}

// The memory that clients of HTTP/2 may fill is bounded: the server announces its streams,
// and the bytes of each and of a connection that it takes before they are read.
func TestHTTP2Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book, err := auth.Open(t.TempDir() + "/keys.json")
		if err != nil {
			t.Fatal(err)
		}
		engines := upstream.New(upstream.Options{})
		defer engines.Close()
		w := &world{t: t, moved: make(chan struct{}, 1)}
		g := New(Options{Activator: activator.New(activator.Options{Waker: w, Keys: book, Limits: &w.limits, Engines: engines, Open: true})})
		ln := httpservertest.Listen()
		ended := make(chan struct{})
		go func() { g.Serve(ln, nil); close(ended) }()
		defer func() { g.Shutdown(t.Context()); <-ended }()
		c, err := ln.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and empty settings
		frames := http2.NewFramer(io.Discard, c)
		const initial = 65535 // of a connection's window
		var streams, stream, connection uint32
		for connection == 0 {
			f, err := frames.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if f.IsAck() {
					continue
				}
				streams, _ = f.Value(http2.SettingMaxConcurrentStreams)
				stream, _ = f.Value(http2.SettingInitialWindowSize)
			case *http2.WindowUpdateFrame:
				connection = initial + f.Increment
			}
		}
		if streams != 100 || stream != 256<<10 || connection != 512<<10 {
			t.Errorf("%d streams, %d bytes each, %d a connection", streams, stream, connection)
		}
	})
}

// A connection that gets a request while it is ended to make room does not begin it.
func TestEndedConnectionBeginsNoRequest(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := httpservertest.RaceListener{Listener: tcp, Accepted: make(chan *httpservertest.RaceConn, 2)}
	book, err := auth.Open(t.TempDir() + "/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	w := &world{t: t, moved: make(chan struct{}, 1)}
	var answered atomic.Int32
	g := New(Options{
		Connections: httpserver.NewConnections(1, 1, nil), Count: func(...string) { answered.Add(1) },
		Activator: activator.New(activator.Options{Waker: w, Keys: book, Limits: &w.limits, Engines: engines, Open: true}),
	})
	ended := make(chan struct{})
	go func() { g.Serve(ln, nil); close(ended) }()
	defer func() { g.Shutdown(t.Context()); <-ended }()
	const request = "GET /x HTTP/1.1\r\nHost: other\r\n\r\n"
	dial := func() net.Conn {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	inner := <-ln.Accepted
	inner.OnClose(func() {
		io.WriteString(first, request)
		answer := make(chan string, 1)
		go func() {
			b := make([]byte, 100)
			n, _ := first.Read(b)
			answer <- string(b[:n])
		}()
		select {
		case a := <-answer:
			t.Errorf("a connection that is ended was answered %q", a)
			return
		case <-inner.Again: // the server gives it up
		}
		inner.Conn.Close()
		<-answer
	})
	second := dial()
	io.WriteString(second, request)
	if res, err := http.ReadResponse(bufio.NewReader(second), nil); err != nil || res.StatusCode != 404 {
		t.Error(res, err)
	}
	if n := answered.Load(); n != 1 {
		t.Errorf("%d requests were answered, want one", n)
	}
}
