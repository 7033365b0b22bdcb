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
// first byte of its answer's body, a head is none, and when the last byte came.
func TestTraffic(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
		for _, part := range []string{"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n", "he", "llo"} {
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
	expect := func(when string, waits, bytes bool) time.Time {
		t.Helper()
		got := c.Traffic(e.addr)
		if got.InFlight != 1 || got.Waiting.IsZero() == waits || got.LastByte.IsZero() == bytes || waits && got.Waiting.Before(began.Round(0)) {
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
	head := expect("head", true, true)
	step <- struct{}{}
	r.Read(make([]byte, 10))
	if begun := expect("begun", false, true); begun.Before(head) {
		t.Errorf("a byte at %s, after %s", begun, head)
	}
	step <- struct{}{}
	io.ReadAll(r)
	r.Close()
	if got := c.Traffic(e.addr); got.InFlight != 0 || !got.Waiting.IsZero() {
		t.Errorf("after: %+v", got)
	}
}
