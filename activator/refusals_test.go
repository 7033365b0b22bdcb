package activator

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefusalsInTheLog: of refused requests at most ten a second are logged of each team
// and status, and the number of the others with the next request. Answered requests are
// all logged.
func TestRefusalsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Open = false })
		key, _, err := w.keys.Create("red", "", false)
		if err != nil {
			t.Fatal(err)
		}
		get := func(n int, path, key string) {
			for range n {
				w.do(t.Context(), "GET", path, "", "Authorization", "Bearer "+key)
			}
		}
		expect := func(want map[string]int) {
			t.Helper()
			synctest.Wait()
			log := w.logs.String()
			for text, n := range want {
				if got := strings.Count(log, text); got != n {
					t.Errorf("%q is %d times in the log, want %d", text, got, n)
				}
			}
			if t.Failed() {
				t.Fatal(log)
			}
		}
		get(500, "/v1/models", "wrong")
		get(30, "/v1/unknown", "wrong")
		get(30, "/v1/models/unknown", key)
		get(50, "/v1/models", key)
		expect(map[string]int{"msg=request": 10 + 10 + 10 + 50, "code=401": 10, "code=404": 20, "code=200": 50, "one by one": 0})
		time.Sleep(time.Second)
		get(1, "/v1/models", key)
		expect(map[string]int{"code=200": 51, "one by one": 3, "code=401 team=\"\" requests=490": 1, "code=404 team=\"\" requests=20": 1, "code=404 team=red requests=20": 1})
		get(12, "/v1/models", "wrong")
		time.Sleep(time.Second)
		get(1, "/v1/models", "wrong")
		expect(map[string]int{"code=401 team=\"\" requests=2": 1, "one by one": 4})
		if !w.act.refusals.Settled() {
			t.Error("a report is due though nothing was left out: every request looks for it")
		}
	})
}
