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

func (s *fakeAhead) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	if s.err != nil {
		return functions.Prewarm{}, s.err
	}
	s.last = functions.Prewarm{ID: "pw-1", Function: name.String(), Tier: tier, State: "planned", By: by, Until: until}
	return s.last, nil
}

func (s *fakeAhead) Prewarms() []functions.Prewarm {
	return []functions.Prewarm{{ID: "pw-1", Function: "a/one", Tier: "gpu", By: "k1"}, {ID: "pw-2", Function: "b/two", Tier: "gpu", By: "history", Why: "daily"}}
}

func (s *fakeAhead) PrewarmLeft(string) time.Duration { return 42 * time.Minute }

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
		{r.join, `{"model":"one"}`, nil, 401, "invalid_api_key", ""},
		{r.keyA, `{"model":"one"}`, &functions.PrewarmBudgetError{In: 20 * time.Second}, 429, "prewarm_budget_exceeded", "20"},
		{r.keyA, `{"model":"one"}`, fmt.Errorf("x: %w", &functions.PrewarmBudgetError{}), 429, "prewarm_budget_exceeded", ""},
		{r.keyA, `{"model":"one"}`, functions.ErrPrewarmTier, 400, "invalid_value", ""},
		{r.keyA, `{"model":"one"}`, functions.ErrTooManyPrewarms, 429, "rate_limit_exceeded", "55"},
		{r.keyA, `{"model":"one"}`, functions.ErrNotFound, 404, "not_found", ""},
	} {
		hints.err = c.err
		status, head, answer := r.ask(t, "POST", "/api/v1/prewarm", c.key, c.body)
		if status != c.status || status == 202 && !strings.Contains(string(answer), c.code) || status != 202 && codeOf(answer) != c.code || c.header != head.Get("Retry-After") {
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
	p, err := c.Prewarm(t.Context(), functions.Name{Team: "a", Name: "one"}, time.Time{}, "")
	if d := time.Until(p.Until); err != nil || p.ID != "pw-1" || d < 9*time.Minute || d > 10*time.Minute || p.Will == "" {
		t.Errorf("%+v %v", p, err)
	}
	if all, err := c.Prewarms(t.Context()); err != nil || len(all.Items) != 2 {
		t.Errorf("%+v %v", all, err)
	}
}
