package gateway

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver/httpservertest"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// A request that is answered without its body, which never comes, ends within unreadWait;
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
					g := New(Options{Leader: func() string { return "" }, Activator: activator.New(activator.Options{Waker: w, Keys: book, Limits: &w.limits, Engines: engines, Open: true})})
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
					for range 2 { // the connection is kept, also longer than unreadWait
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
					if took := time.Since(began); took > unreadWait+time.Second || !strings.HasPrefix(string(b), "HTTP/1.1 "+row.want) {
						t.Errorf("ended after %v: %.100q", took, b)
					}
				})
			})
		}
	}
}
