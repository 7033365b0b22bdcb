package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

const intentFile = `apiVersion: thaw.dev/v1
kind: Router
metadata: {name: auto}
spec:
  intents:
    threshold: 0.6
    list:
      - name: billing
        examples: [where is my invoice, I was charged twice, refund my payment, why is my bill so high, send me the invoice of May, the payment failed]
      - name: weather
        examples: [what is the weather today, will it rain tomorrow, is it sunny in Paris, how cold is it outside, forecast for the weekend, do I need an umbrella]
  rules:
    - {name: billing, when: {intent: billing}, to: [money]}
    - {name: general, to: [small]}
`

// TestSocket: while a text is typed its intent becomes sure, the cold model starts, and the
// submit finds it READY; a SIGTERM closes the socket by 1001.
func TestSocket(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"small.yaml": tiny(t, "small", ""), "money.yaml": tiny(t, "money", ""), "auto.yaml": intentFile})
	c, res, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(p.url, "http")+"/ws/tab-1",
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {p.admin()}}})
	if err != nil {
		t.Fatal(res, err)
	}
	defer c.CloseNow()
	say := func(text string) {
		t.Helper()
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	type frame struct {
		Type, New, Prepares, Model, Code, Message string
		Cold                                      bool
		Confidence                                float64
	}
	until := func(kind string, has func(frame) bool) frame {
		t.Helper()
		for {
			_, b, err := c.Read(t.Context())
			if err != nil {
				t.Fatalf("waiting for %s: %v", kind, err)
			}
			var f frame
			if err := json.Unmarshal(b, &f); err != nil || f.Type == "error" {
				t.Fatalf("%s %v", b, err)
			}
			if f.Type == kind && (has == nil || has(f)) {
				return f
			}
		}
	}
	for i := range "where is my invoice " {
		say("where is my invoice "[:i+1])
	}
	if f := until("intent_change", func(f frame) bool { return f.New == "billing" }); f.Prepares != "model" || f.Confidence < 0.6 {
		t.Fatalf("%+v", f)
	}
	p.eventually("the model is READY before the submit", func() bool { return p.state("default/money") == "READY" })
	say("__submit__")
	if f := until("generation_start", nil); f.Model != "money" || f.Cold {
		t.Fatalf("%+v", f)
	}
	until("generation_complete", nil)
	metrics := p.do("GET", "/metrics", "", "Authorization", p.admin()).body
	if !strings.Contains(metrics, `thaw_speculation_total{kind="model",result="hit",router="default/auto",team="default"} 1`) {
		t.Errorf("no hit is counted:\n%s", metrics)
	}
	closed := make(chan websocket.StatusCode, 1)
	go func() {
		_, _, err := c.Read(context.Background())
		closed <- websocket.CloseStatus(err)
	}()
	p.stop()
	if code := <-closed; code != websocket.StatusGoingAway {
		t.Errorf("closed by %d", code)
	}
}

// TestOrigins: a named origin may use /v1 and /predict, and nothing else.
func TestOrigins(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"small.yaml": tiny(t, "small", ""), "auto.yaml": strings.ReplaceAll(intentFile, "money", "small")}, "--origin", "http://localhost:3000")
	for _, c := range []struct {
		method, path string
		named, other int
		fields       bool
	}{
		{"GET", "/v1/models", 200, 403, true},
		{"POST", "/v1/chat/completions", 400, 403, true},
		{"POST", "/predict?text=a", 200, 403, true},
		{"GET", "/ui/socket", 403, 403, false},
		{"GET", "/ui/", 403, 403, false},
		{"GET", "/health", 403, 403, false},
		{"GET", "/api/v1/functions", 403, 403, false},
		{"GET", "/metrics", 403, 403, false},
	} {
		for origin, status := range map[string]int{"http://localhost:3000": c.named, "http://localhost:3001": c.other} {
			r := p.do(c.method, c.path, "", "Origin", origin)
			allowed := r.header.Get("Access-Control-Allow-Origin")
			if r.status != status || (allowed == origin) != (c.fields && status == c.named && status != c.other) {
				t.Errorf("%s %s from %s: %d, allows %q", c.method, c.path, origin, r.status, allowed)
			}
		}
	}
	for path, fields := range map[string]bool{"/v1/chat/completions": true, "/v1/files": true, "/predict": true, "/api/v1/keys": false} {
		r := p.do("POST", path, "{}", "Origin", "http://localhost:3000", "Content-Encoding", "gzip") // before a handler
		if allowed := r.header.Get("Access-Control-Allow-Origin"); r.status != 415 || (allowed == "http://localhost:3000") != fields {
			t.Errorf("%s, compressed: %d, allows %q", path, r.status, allowed)
		}
		r = p.do("POST", path, "{}", "Origin", "http://localhost:3000", "X-Long", strings.Repeat("x", 16<<10))
		if allowed := r.header.Get("Access-Control-Allow-Origin"); r.status != 431 || (allowed == "http://localhost:3000") != fields {
			t.Errorf("%s, a large head: %d, allows %q", path, r.status, allowed)
		}
	}
}
