package activator

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestPriorities: waiting requests are served by priority, one that asks for more than its
// team may is refused, and a refused low request wakes nothing for its retry.
func TestPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		team := func(max functions.Priority) {
			w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Priority: functions.TeamPriority{Max: max}}}})
		}
		f := testFunction("tiny")
		w.act.Publish(f)
		var mu sync.Mutex
		var served []string
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			mu.Lock()
			_, name, _ := strings.Cut(body, `"user":"`)
			name, _, _ = strings.Cut(name, `"`)
			served = append(served, name)
			mu.Unlock()
			return goodAnswer(c, r, body)
		})
		var all sync.WaitGroup
		for i, p := range []string{"low", "normal", "", "high", "low", "high"} {
			all.Go(func() {
				var head []string
				if p != "" {
					head = []string{"thaw-priority", p}
				}
				body := strings.Replace(plainRequest, `{`, `{"user":"`+p+strconv.Itoa(i)+`",`, 1)
				if r := w.post("/v1/chat/completions", body, head...); r.status != 200 {
					t.Errorf("%s: %+v", p, r)
				}
			})
			synctest.Wait()
		}
		if d := w.takeDemand()[f.Name.Name]; d.Queued != 6 || d.Low.Queued != 2 {
			t.Errorf("%+v", d)
		}
		w.act.Publish(readyAt(f, 1, "e:1"))
		all.Wait()
		if got := strings.Join(served, " "); got != "high3 high5 normal1 2 low0 low4" {
			t.Errorf("served %s", got)
		}

		for _, c := range []struct {
			max, header, code, says string
			status                  int
		}{
			{"normal", "high", "permission_denied", "the team `default` are at most `normal`", 403},
			{"", "urgent", "invalid_value", "high, normal or low, not `urgent`", 400},
			{"normal", "low", "", "", 200},
			{"low", "", "", "", 200},
		} {
			team(functions.Priority(c.max))
			r := w.post("/v1/chat/completions", plainRequest, "thaw-priority", c.header)
			if r.status != c.status || r.code() != c.code || !strings.Contains(r.body, c.says) {
				t.Errorf("%+v: %+v", c, r)
			}
		}
		team("")
		if _, e := w.act.Reserve(t.Context(),
			ReservationRequest{Name: f.Name, Team: "default", Header: func(string) string { return "urgent" }}); e == nil || e.Status != 400 {
			t.Errorf("a reservation: %v", e)
		}
		// A low request that cannot wait for long enough wakes nothing for its retry.
		f.Forecast = functions.Forecast{P50: time.Minute, P90: time.Minute}
		w.act.Publish(f)
		wakes := w.count(&w.wakes)
		for want, head := range []string{"low", "normal"} {
			if r := w.post("/v1/chat/completions", plainRequest, "thaw-max-wait", "10s", "thaw-priority", head); r.status != 503 {
				t.Errorf("%+v", r)
			}
			if got := w.count(&w.wakes) - wakes; got != want {
				t.Errorf("%s: %d wakes", head, got)
			}
		}
	})
}

// TestPriorityAtNextTarget: a request that its Router gives to the next target keeps its
// priority there.
func TestPriorityAtNextTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		r := testRouter("first", "second")
		r.Spec.Retry.Escalate = true
		w.act.SetRouters([]*functions.Router{r}, nil)
		second := testFunction("second")
		w.act.Publish(readyAt(testFunction("first"), 4, "nobody:1"), second)
		w.engineAt("s:1", goodAnswer)
		var all sync.WaitGroup
		all.Go(func() {
			if res := w.post("/v1/chat/completions", autoRequest, "thaw-priority", "low"); res.status != 200 {
				t.Errorf("%+v", res)
			}
		})
		synctest.Wait()
		if d := w.takeDemand()[second.Name.Name]; d.Low.Queued != 1 {
			t.Errorf("%d low requests wait for the second target", d.Low.Queued)
		}
		w.act.Publish(readyAt(second, 4, "s:1"))
		all.Wait()
	})
}

// TestLowRequestsLeaveBuffer: low requests take half of the bytes of waiting bodies at most.
func TestLowRequestsLeaveBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.BufferBytes = 100 * int64(len(plainRequest)) })
		w.act.Publish(testFunction("tiny"))
		count := map[string]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		send := func(priority string) {
			for range 60 {
				all.Go(func() {
					r := w.post("/v1/chat/completions", plainRequest, "thaw-priority", priority, "thaw-max-wait", "10s")
					mu.Lock()
					defer mu.Unlock()
					count[priority+" "+r.code()]++
				})
				synctest.Wait()
			}
		}
		send("low")
		send("normal")
		// 50 low ones fit, and as many others: fewer by what a body takes beside its bytes.
		mu.Lock()
		if low, normal := count["low queue_full"], count["normal queue_full"]; low < 10 || low > 15 || normal < 10 || normal > 15 {
			t.Errorf("%v", count)
		}
		mu.Unlock()
		all.Wait()
	})
}
