package activator

import (
	"strings"
	"testing"
	"testing/synctest"
)

// TestAnthropicModels: a client of Anthropic's API, which sends its version, gets its form of the
// list, of one model and of errors; others get OpenAI's.
func TestAnthropicModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		w.act.Publish(testFunction("tuna"))
		for _, x := range []struct {
			path, version, body string
			status              int
		}{
			{"/v1/models?limit=1000", "2023-06-01", `{"data":[{"type":"model","id":"tiny","display_name":"tiny","created_at":"2026-01-01T00:00:00Z","lifecycle":"active"},` +
				`{"type":"model","id":"tuna","display_name":"tuna","created_at":"2026-01-01T00:00:00Z","lifecycle":"active"}],"has_more":false,"first_id":"tiny","last_id":"tuna"}`, 200},
			{"/v1/models/tiny", "2023-06-01", `{"type":"model","id":"tiny","display_name":"tiny","created_at":"2026-01-01T00:00:00Z","lifecycle":"active"}`, 200},
			{"/v1/models/tiny", "", `{"id":"tiny","object":"model","created":1767225600,`, 200},
			{"/v1/models/none", "2023-06-01", `{"type":"error","error":{"type":"not_found_error","message":"The model`, 404},
			{"/v1/models/none", "", `{"error":{"message":"The model`, 404},
		} {
			var fields []string
			if x.version != "" {
				fields = []string{"Anthropic-Version", x.version}
			}
			if r := w.do(t.Context(), "GET", x.path, "", fields...); r.status != x.status || !strings.HasPrefix(r.body, x.body) {
				t.Errorf("%s %q: %d %s", x.path, x.version, r.status, r.body)
			}
		}
		w = newTestEnv(t, nil)
		if r := w.do(t.Context(), "GET", "/v1/models", "", "anthropic-version", "2023-06-01"); r.body != `{"data":[],"has_more":false,"first_id":null,"last_id":null}` {
			t.Error(r.body)
		}
	})
}
