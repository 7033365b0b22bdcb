package upstream

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Traffic counts the exchanges that are under way, tells since when one waits for the
// first byte of its answer's body, a head is none, and when the last byte came: each piece
// of a body counts, however its end is told.
func TestTraffic(t *testing.T) {
	for name, parts := range map[string][]string{
		"length":    {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n", "he", "l", "lo"},
		"chunks":    {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "2\r\nhe\r\n", "1\r\nl\r\n", "2\r\nlo\r\n0\r\n\r\n"},
		"until end": {"HTTP/1.1 200 OK\r\n\r\n", "he", "l", "lo"},
	} {
		t.Run(name, func(t *testing.T) { testTraffic(t, parts) })
	}
}

func testTraffic(t *testing.T, parts []string) {
	step := make(chan struct{})
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
		for _, part := range parts {
			<-step
			io.WriteString(c, part)
		}
		return false
	})
	c := client(t, Options{})
	if got := c.Traffic(e.addr); got != (functions.Traffic{}) {
		t.Errorf("before: %+v", got)
	}
	began := time.Now()
	expect := func(when string, waits bool) time.Time {
		t.Helper()
		got := c.Traffic(e.addr)
		if got.InFlight != 1 || got.Waiting.IsZero() == waits || got.LastByte.IsZero() || waits && got.Waiting.Before(began.Round(0)) {
			t.Errorf("%s: %+v", when, got)
		}
		return got.LastByte
	}
	reached := make(chan *Response, 1)
	go func() {
		r, err := c.Do(t.Context(), postRequest(e.addr, "x"))
		if err != nil {
			t.Error(err)
		}
		reached <- r
	}()
	step <- struct{}{} // it has read the request, and sends the head
	r := <-reached
	last := expect("head", true)
	for i := range parts[2:] {
		step <- struct{}{}
		r.Read(make([]byte, 10))
		if at := expect("piece", false); !at.After(last) {
			t.Errorf("piece %d: a byte at %s, after %s", i, at, last)
		} else {
			last = at
		}
	}
	step <- struct{}{}
	io.ReadAll(r)
	r.Close()
	if got := c.Traffic(e.addr); got.InFlight != 0 || !got.Waiting.IsZero() {
		t.Errorf("after: %+v", got)
	}
}

// Of several requests that wait, Waiting is that of the oldest, also where it is on a
// connection that had served another.
func TestWaiting(t *testing.T) {
	arrived := make(chan struct{})
	release := map[string]chan struct{}{"oldest": make(chan struct{}), "second": make(chan struct{}), "third": make(chan struct{})}
	e := newEngine(t, func(c net.Conn, _ *http.Request, body []byte, _ int) bool {
		if wait := release[string(body)]; wait != nil {
			arrived <- struct{}{}
			select {
			case <-wait:
			case <-t.Context().Done():
				return false
			}
		}
		io.WriteString(c, whole(string(body)))
		return true
	})
	c := client(t, Options{IdleTimeout: time.Hour})
	ask := func(body string) {
		r, err := c.Do(t.Context(), postRequest(e.addr, body))
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		if got, err := io.ReadAll(r); string(got) != body || err != nil {
			t.Errorf("%q for %q, %v", got, body, err)
		}
	}
	ask("served")
	var waiting []time.Time
	var answered []chan struct{}
	for i, body := range []string{"oldest", "second", "third"} {
		began, done := time.Now().Round(0), make(chan struct{})
		go func() { defer close(done); ask(body) }()
		select {
		case <-arrived:
		case <-done:
			t.Fatalf("%s is answered before it is let", body)
		}
		answered = append(answered, done)
		got := c.Traffic(e.addr)
		if i == 0 && e.conns.Load() != 1 {
			t.Errorf("%d connections for one request after another", e.conns.Load())
		}
		if i == 0 && got.Waiting.Before(began) || i > 0 && !got.Waiting.Equal(waiting[0]) || got.InFlight != i+1 {
			t.Errorf("%s: %+v, began %s, the others %s", body, got, began, waiting)
		}
		waiting = append(waiting, got.Waiting)
	}
	close(release["oldest"])
	<-answered[0]
	if got := c.Traffic(e.addr); !got.Waiting.After(waiting[0]) || got.InFlight != 2 {
		t.Errorf("the oldest is answered: %+v, it waited since %s", got, waiting[0])
	}
	close(release["second"])
	close(release["third"])
	<-answered[1]
	<-answered[2]
}
