package shim

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestFirstRequestSpan: the way of the first request is told where it waited for READY, and
// nowhere else.
func TestFirstRequestSpan(t *testing.T) {
	const ready = int64(1_000_000_000)
	for _, c := range []struct {
		description       string
		ready             int64
		arrived, answered time.Duration // after READY; -1: not yet
		ahead             bool
		release, engine   float64 // seconds; -1: no span
	}{
		{"it waited", ready, 2 * time.Millisecond, 5 * time.Millisecond, false, 0.002, 0.003},
		{"it came while READY was being told", ready, -time.Microsecond, time.Millisecond, false, 0, 0.001001},
		{"not answered yet", ready, time.Millisecond, -1, false, -1, 0},
		{"no request", ready, -1, -1, false, -1, 0},
		{"not READY", 0, time.Millisecond, time.Millisecond, false, -1, 0},
		{"it was sent ahead, and let through late", ready, 2 * time.Second, 3 * time.Second, true, 2, 1},
		{"it came by chance", ready, time.Minute, time.Minute + time.Second, false, -1, 0},
	} {
		t.Run(c.description, func(t *testing.T) {
			var f firstRequest
			f.early.Store(c.ahead)
			if c.arrived != -1 {
				f.arrived.Store(ready + int64(c.arrived))
			}
			if c.answered != -1 {
				f.answered.Store(ready + int64(c.answered))
			}
			got := f.span(c.ready, 7)
			if c.release < 0 {
				if got != nil {
					t.Fatalf("%+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Phase != functions.PhaseFirstToken || got[0].Start != 7 || len(got[0].Parts) != 2 {
				t.Fatalf("%+v", got)
			}
			p := got[0].Parts
			if aboutEqual(p[0].Duration, c.release) && p[0].Start == 7 && aboutEqual(p[1].Duration, c.engine) &&
				aboutEqual(p[1].Start, 7+c.release) && aboutEqual(got[0].Duration, c.release+c.engine) {
				return
			}
			t.Errorf("%+v, want %v and %v", got[0], c.release, c.engine)
		})
	}
}

func aboutEqual(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// TestLargestBody: the pod takes what the gateway's default lets through and what the
// gateway adds to it.
func TestLargestBody(t *testing.T) {
	s := &Shim{log: slog.New(slog.DiscardHandler)}
	srv := s.newServer()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer func() {
		srv.Shutdown(t.Context())
		<-served
	}()
	for more, want := range map[int]int{8 << 10: 404, 1 << 20: 413} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+listener.Addr().String()+"/nothing",
			bytes.NewReader(make([]byte, 32<<20+more)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%d bytes more than the gateway's default: %d, want %d", more, res.StatusCode, want)
		}
	}
}

// TestFirstRequestOnce: of requests that come at once one is the first.
func TestFirstRequestOnce(t *testing.T) {
	var f firstRequest
	if !f.claim() || f.claim() || f.claim() {
		t.Error("the first is not one")
	}
}
