package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRemoteStrayAnswer: an answer that comes when no request waits for one, late on a
// connection that is used again, reaches no client.
func TestRemoteStrayAnswer(t *testing.T) {
	answer := func(n int32) string {
		body := strings.Replace(vendorPlain, "chatcmpl-1", fmt.Sprint("chatcmpl-of-", n), 1)
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	var requests atomic.Int32
	again, written := make(chan struct{}), make(chan struct{})
	v := newVendor(t, func(c net.Conn, _ *http.Request, _ string) bool {
		n := requests.Add(1)
		if !writeString(c, answer(n)) {
			return false
		}
		if n == 1 {
			<-again
			defer close(written)
			return writeString(c, answer(-1))
		}
		return true
	})
	w, _ := newRemoteEnv(t, v, nil, nil)
	if r := w.post("/v1/chat/completions", cloudPlain); !strings.Contains(r.body, "chatcmpl-of-1") {
		t.Fatalf("%+v", r)
	}
	close(again)
	<-written
	for range 3 {
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 200 || strings.Contains(r.body, "of--1") {
			t.Errorf("%+v", r)
		}
	}
}
