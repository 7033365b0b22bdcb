package activator

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
)

// TestRequestsOfAKey: one key may have so many requests under way, held ones, refused ones and
// joined retries counted; other keys, and requests without one, are not affected.
func TestRequestsOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := httpserver.NewBudget(100, 2)
		w := newTestEnv(t, func(o *Options) { o.KeyRequests = budget })
		red, _, _ := w.keys.Create("default", "", false)
		blue, _, _ := w.keys.Create("default", "", false)
		w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			time.Sleep(time.Minute)
			return replyComplete(c, jsonAnswer)
		})
		w.act.Publish(readyAt(testFunction("tiny"), 8, "e:1"))
		ask := func(key, body string, head ...string) result {
			return w.do(context.Background(), "POST", "/v1/chat/completions", body, append(head, "Authorization", "Bearer "+key)...)
		}
		var wg sync.WaitGroup
		for range 2 { // the second joins the first
			wg.Go(func() {
				if r := ask(red, plainRequest, "Idempotency-Key", "a"); r.status != 200 {
					t.Errorf("%+v", r)
				}
			})
			synctest.Wait()
		}
		if r := ask(red, plainRequest); r.status != 429 || r.code() != "rate_limit_exceeded" || !strings.Contains(r.body, "--client-share") ||
			r.took != 0 {
			t.Errorf("%+v", r)
		}
		if m := metric(t, w, "thaw_quota_rejections_total"); !strings.Contains(m, `reason="key"`) {
			t.Error(m)
		}
		if r := ask(blue, plainRequest); r.status != 200 {
			t.Errorf("%+v", r)
		}
		wg.Wait()
		for range 3 { // what is refused later is given back too
			if r := ask(red, `{"model":"nobody","messages":[]}`); r.status != 404 {
				t.Errorf("%+v", r)
			}
		}
		if r := ask(red, plainRequest); r.status != 200 {
			t.Errorf("%+v", r)
		}
		if n := budget.Used(); n != 0 {
			t.Errorf("%d are still counted", n)
		}
	})
}

// TestMembersOfAKey: what thaw itself calls for a request has no connection, and is not counted.
func TestMembersOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.KeyRequests = httpserver.NewBudget(100, 1) })
		key, _, _ := w.keys.Create("default", "", false)
		w.newMembers(map[string]string{"a": "first long answer of a member", "b": "another long answer of a member", "judge": "the synthesis"})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		for range 2 {
			r := w.do(context.Background(), "POST", "/v1/chat/completions", askPanel, "Authorization", "Bearer "+key)
			if r.status != 200 || !strings.Contains(r.body, "the synthesis") {
				t.Errorf("%+v", r)
			}
			synctest.Wait()
		}
	})
}
