package httpserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// The twin runs on a bubble's clock: minutes of holding take no time, and every
// moment is exact.
func TestNetHTTPServerInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		gone := make(chan time.Duration, 1)
		ln := httpservertest.Listen()
		srv := newNetHTTPServer(Options{Handler: func(r *Request, w *Response) {
			ctx := r.Context()
			switch r.Path {
			case "/cold":
				n := 0
				w.Stream = newStream(func(p []byte) (int, error) {
					if n++; n == 7 {
						return copy(p, "data: [DONE]\n\n"), io.EOF
					}
					time.Sleep(10 * time.Second)
					return copy(p, fmt.Sprintf(": thaw percent=%d\n", n)), nil
				})
			case "/wait":
				<-ctx.Done()
				gone <- time.Since(start)
			}
		}})
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ln) }()
		tr := &http.Transport{DialContext: ln.DialContext}
		c := &http.Client{Transport: tr}
		r, err := c.Get("http://h/cold")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if err != nil || strings.Count(string(b), "\n") != 8 || time.Since(start) != time.Minute {
			t.Errorf("%q %v after %v", b, err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		q, _ := http.NewRequestWithContext(ctx, "GET", "http://h/wait", nil)
		if _, err := c.Do(q); err == nil {
			t.Error("an answer to a client that left")
		}
		if d := <-gone; d != 11*time.Minute {
			t.Errorf("noticed at %v", d)
		}

		// A new connection has the time of a head for its first byte; one that had a
		// request ends between one and 1.25 times the idle time.
		for part, want := range map[string]time.Duration{"": 10 * time.Second, "GET / HT": 10 * time.Second, get: 250 * time.Second} {
			conn, err := ln.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			from := time.Now()
			io.WriteString(conn, part)
			b, _ := io.ReadAll(conn)
			if d := time.Since(from); d != want || (part == "GET / HT") != strings.HasPrefix(string(b), "HTTP/1.1 408 ") {
				t.Errorf("%q ended after %v: %q", part, d, b)
			}
			conn.Close()
		}

		// A slow body: 5 s of grace, then 1 KiB/s.
		conn, _ := ln.Dial(t.Context())
		from := time.Now()
		go func() {
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
			for {
				time.Sleep(time.Second)
				if _, err := conn.Write(make([]byte, 512)); err != nil {
					return
				}
			}
		}()
		b, _ = io.ReadAll(conn)
		if d := time.Since(from); d < 9*time.Second || d > 11*time.Second || !strings.HasPrefix(string(b), "HTTP/1.1 408 ") {
			t.Errorf("the slow body ended after %v: %q", d, b)
		}
		conn.Close()

		time.Sleep(2 * time.Second) // let the slow one see it
		tr.CloseIdleConnections()
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
