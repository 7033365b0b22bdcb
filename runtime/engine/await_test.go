package engine

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Health is any 2xx, behind at most one redirect on the same host and port, however late;
// what was answered last is known.
func TestAwaitRudeEngines(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(c net.Conn, r *http.Request, n int64, elapsed time.Duration)
		within time.Duration // of the end of the wait
		ready  bool
		last   string
	}{
		{"204", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) { say(c, "204 No Content", "", "") }, time.Second, true, "/health answered 2xx"},
		{"a slash is missing", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			if r.URL.Path == "/health/" {
				say(c, "200 OK", "", "ok")
				return
			}
			say(c, "301 Moved Permanently", "Location: /health/\r\n", "")
		}, time.Second, true, "/health/ answered 2xx"},
		{"a redirect by its address", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			if r.URL.Path == "/ok" {
				say(c, "200 OK", "", "")
				return
			}
			say(c, "302 Found", "Location: http://127.0.0.1:1/ok?x=1\r\n", "")
		}, time.Second, true, "/ok?x=1 answered 2xx"},
		{"a redirect elsewhere", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			say(c, "302 Found", "Location: http://127.0.0.2:1/health\r\n", "")
		}, 30 * time.Second, false, "/health answered HTTP 302 to http://127.0.0.2:1/health"},
		{"redirects for ever", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			say(c, "308 Permanent Redirect", "Location: "+r.URL.Path+"/\r\n", "")
		}, 30 * time.Second, false, "/health/ answered HTTP 308 to /health//"},
		{"each takes 9 s", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			time.Sleep(9 * time.Second)
			say(c, "200 OK", "", "")
		}, 10 * time.Second, true, "/health answered 2xx"},
		{"the first is never answered", func(c net.Conn, _ *http.Request, n int64, _ time.Duration) {
			if n > 1 {
				say(c, "200 OK", "", "")
			}
		}, 3 * time.Second, true, "/health answered 2xx"},
		{"nothing for 10 s, then at once", func(c net.Conn, _ *http.Request, _ int64, elapsed time.Duration) {
			if elapsed >= 10*time.Second {
				say(c, "200 OK", "", "")
			}
		}, 15 * time.Second, true, "/health answered 2xx"},
		{"a wrong path", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			say(c, "404 Not Found", "Content-Type: text/html\r\n", "<h1>Not Found</h1>")
		}, 30 * time.Second, false, "/health answered HTTP 404: <h1>Not Found</h1>"},
		{"no HTTP", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			c.Write([]byte("SSH-2.0\r\n"))
			c.Close()
		}, 30 * time.Second, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), atomic.Int64{}
				defer time.Sleep(time.Minute) // slow answers end
				e, _ := rudeClient(t, Command{}, func(conn net.Conn, r *http.Request) {
					c.answer(conn, r, n.Add(1), time.Since(start))
				})
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				listening := 0
				err := e.Await(ctx, func() { listening++ })
				if (err == nil) != c.ready || time.Since(start) > c.within || listening != 1 {
					t.Errorf("%v after %s, listening told %d times", err, time.Since(start), listening)
				}
				if got := e.LastAnswer(); !strings.HasPrefix(got, c.last) || c.last == "" && got != "" {
					t.Errorf("last answer %q, want %q", got, c.last)
				}
			})
		})
	}
}
