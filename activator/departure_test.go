package activator

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestDepartureIsNoFailure: a client that leaves while its request is at the engine says nothing
// about the replica: it is not reported, and the next request goes to it at once.
func TestDepartureIsNoFailure(t *testing.T) {
	for name, body := range map[string]string{"plain": plainRequest, "stream": streamRequest} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				var left atomic.Bool
				w.engineAt("e:1", func(c net.Conn, r *http.Request, text string) bool {
					if !left.Swap(true) {
						io.Copy(io.Discard, c) // until its peer closes
						return false
					}
					return goodAnswer(c, r, text)
				})
				w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
				ctx, leave := context.WithTimeout(context.Background(), time.Second)
				defer leave()
				if r := w.do(ctx, "POST", "/v1/chat/completions", body); r.err == nil {
					t.Errorf("%+v", r)
				}
				synctest.Wait()
				if got := w.engineRequests(); len(got) != 0 {
					t.Errorf("reported: %q", got)
				}
				if r := w.post("/v1/chat/completions", body); r.status != 200 || r.took != 0 {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}
