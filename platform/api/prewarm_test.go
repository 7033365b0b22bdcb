package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// fakeAhead takes hints as it is told to.
type fakeAhead struct {
	err  error
	last functions.Prewarm
}

func (a *fakeAhead) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	if a.err != nil {
		return functions.Prewarm{}, a.err
	}
	a.last = functions.Prewarm{ID: "pw-1", Function: name.String(), Tier: tier, State: "planned", By: by, Until: until}
	return a.last, nil
}

func (a *fakeAhead) Prewarms() []functions.Prewarm {
	return []functions.Prewarm{{ID: "pw-1", Function: "a/one", Tier: "gpu", By: "k1"}, {ID: "pw-2", Function: "b/two", Tier: "gpu", By: "history", Why: "daily"}}
}

func (a *fakeAhead) PrewarmLeft(string) time.Duration { return 42 * time.Minute }

func TestPrewarm(t *testing.T) {
	hints := &fakeAhead{}
	r := start(t, func(o *Options) { o.Ahead = hints })
	r.keys(t)
	in := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }
	for _, c := range []struct {
		key, body string
		err       error
		status    int
		code      string // or, with 202, what the answer holds
		header    string
	}{
		{r.keyA, `{"model":"one","until":"` + in(time.Hour) + `"}`, nil, 202, `"function":"a/one","tier":"gpu","state":"planned"`, ""},
		{r.keyA, `{"model":"a/one","tier":"memory"}`, nil, 202, `"tier":"memory"`, ""},
		{r.admin, `{"model":"b/two","tier":"nvme"}`, nil, 202, `"by":"admin"`, ""},
		{r.keyAdm, `{"model":"b/two"}`, nil, 202, `"budget_left_seconds":2520`, ""},
		{r.keyA, `{"model":"b/two"}`, nil, 404, "not_found", ""},
		{r.keyB, `{"model":"one"}`, nil, 404, "not_found", ""},
		{r.keyA, `{"model":"none"}`, nil, 404, "not_found", ""},
		{r.keyA, `{}`, nil, 400, "invalid_value", ""},
		{r.keyA, `{"model":"x y"}`, nil, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one","tier":"tape"}`, nil, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one","until":"` + in(-time.Minute) + `"}`, nil, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one","until":"` + in(25*time.Hour) + `"}`, nil, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one","until":"tomorrow"}`, nil, 400, "invalid_json", ""},
		{r.keyA, `{"model":"one","lease":"1h"}`, nil, 400, "invalid_json", ""},
		{r.keyA, `{"model":"one"`, nil, 400, "invalid_json", ""},
		{"", `{"model":"one"}`, nil, 401, "invalid_api_key", ""},
		{r.keyA, `{"model":"one"}`, &functions.PrewarmBudgetError{In: 20 * time.Second}, 429, "prewarm_budget_exceeded", "20"},
		{r.keyA, `{"model":"one"}`, fmt.Errorf("x: %w", &functions.PrewarmBudgetError{}), 429, "prewarm_budget_exceeded", ""},
		{r.keyA, `{"model":"one"}`, functions.ErrPrewarmTier, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one"}`, functions.ErrTooManyPrewarms, 429, "rate_limit_exceeded", "55"},
		{r.keyA, `{"model":"one"}`, functions.ErrNotFound, 404, "not_found", ""},
	} {
		hints.err = c.err
		status, head, answer := r.ask(t, "POST", "/api/v1/prewarm", c.key, c.body)
		if status != c.status || status == 202 && !strings.Contains(string(answer), c.code) || status != 202 && codeOf(answer) != c.code ||
			c.header != head.Get("Retry-After") {
			t.Errorf("%s %v: %d %s (Retry-After %q), want %d %s", c.body, c.err, status, answer, head.Get("Retry-After"), c.status, c.code)
		}
	}
	hints.err = nil
	for key, want := range map[string]int{r.keyA: 1, r.admin: 2} {
		_, _, answer := r.ask(t, "GET", "/api/v1/prewarm", key, "")
		var p Prewarms
		if err := json.Unmarshal([]byte(answer), &p); err != nil || len(p.Items) != want || (p.Left != nil) != (want == 1) {
			t.Errorf("listed %s, want %d", answer, want)
		}
	}
	c := client(t, r, r.admin)
	p, err := Request[Prewarmed](t.Context(), c, "POST", "/api/v1/prewarm", PrewarmRequest{Model: "a/one"})
	if d := time.Until(p.Until); err != nil || p.ID != "pw-1" || d < 9*time.Minute || d > 10*time.Minute || p.Will == "" {
		t.Errorf("%+v %v", p, err)
	}
	if all, err := Request[Prewarms](t.Context(), c, "GET", "/api/v1/prewarm", nil); err != nil || len(all.Items) != 2 {
		t.Errorf("%+v %v", all, err)
	}
}

// TestClusterRefusals: where the platform knows no requests and loads no adapters ahead, the
// answer has the reason and the way out.
func TestClusterRefusals(t *testing.T) {
	r := start(t, func(o *Options) { o.Requests, o.Functions.AdaptersByRequest = nil, true })
	r.keys(t)
	file := "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: lora, namespace: a}\nspec: {source: az://a/c/m, engine: vllm, " +
		"resources: {gpus: 1}, adapters: [{name: pirate, source: az://a/c/p}]}\n"
	if status, _, body := r.ask(t, "PUT", "/api/v1/functions/a/lora", r.admin, file); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/coldstarts/4bf92f3577b34da6a3ce929d0e0e4736", r.admin, ""); status != 404 ||
		!strings.Contains(body, "thaw-cold-start") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/coldstarts/cs-1", r.keyA, ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "POST", "/api/v1/functions/a/lora/wake", r.admin, `{"adapter":"pirate"}`); status != 400 || !strings.Contains(body, "by the first request") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "POST", "/api/v1/functions/a/lora/wake", r.admin, `{}`); status != 202 {
		t.Errorf("%d %s", status, body)
	}
}
