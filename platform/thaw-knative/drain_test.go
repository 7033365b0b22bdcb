package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// drainChecker is an engine that all replicas share, distinguished by their paths. It knows
// which have ended, and who is sent to one all the same, or was there when it did.
type drainChecker struct {
	mu     sync.Mutex
	flight map[string]int
	ended  map[string]bool
	served int
	wrong  []string
}

func (c *drainChecker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, id, _ := strings.Cut(r.URL.Path, "/replicas/")
	id, _, _ = strings.Cut(id, "/")
	io.Copy(io.Discard, r.Body)
	c.mu.Lock()
	if c.ended[id] {
		c.wrong = append(c.wrong, "a request came to "+id+", which had ended")
	}
	c.flight[id]++
	c.served++
	n := c.served
	c.mu.Unlock()
	select {
	case <-time.After(time.Duration(n%7) * 3 * time.Millisecond):
	case <-r.Context().Done():
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`)
	c.mu.Lock()
	c.flight[id]--
	c.mu.Unlock()
}

func (c *drainChecker) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[id] = true
	if n := c.flight[id]; n > 0 {
		c.wrong = append(c.wrong, fmt.Sprint(id, " was ended with ", n, " requests in flight"))
	}
}

// TestDrainWithTwoActivators: replicas are stopped over and over under load from two
// activators. None is ended before both have heard and its last request is out, and
// every request is answered.
func TestDrainWithTwoActivators(t *testing.T) {
	t.Parallel()
	e := &drainChecker{flight: map[string]int{}, ended: map[string]bool{}}
	r := newTestController(t, e)
	r.node.mu.Lock()
	r.node.auto, r.node.paths, r.node.end = true, true, e.end
	r.node.mu.Unlock()
	gates := []*gate{r.gate("one"), r.gate("two")}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var mu sync.Mutex
	var bad []answer
	for i := range 8 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if x := r.chat(gates[i%2], false, nil); x.status != 200 {
					mu.Lock()
					bad = append(bad, x)
					mu.Unlock()
				}
			}
		})
	}
	for i := range 12 {
		testkit.Eventually(t, "a replica is there", func() bool { n, ended := r.node.counts(); return n > i && ended == i })
		testkit.Eventually(t, "it is used", func() bool { return r.reports.demand().InFlight[r.node.replica()] > 0 })
		r.steer.Stop(revision)
		testkit.Eventually(t, "it is ended", func() bool { _, ended := r.node.counts(); return ended > i })
	}
	close(stop)
	clients.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.wrong) > 0 || len(bad) > 0 {
		t.Errorf("%d wrong of %d: %.3q\n%d answers that are none: %.3v", len(e.wrong), e.served, e.wrong, len(bad), bad)
	}
}
