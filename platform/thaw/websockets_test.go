package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// TestPythonWebSockets: Python's package websockets speaks the whole protocol of sockets
// against the shipped model, and cancels a generation of the fake engine.
func TestPythonWebSockets(t *testing.T) {
	where := os.Getenv("THAW_PYTHON_WEBSOCKETS")
	if where == "" {
		testkit.Missing(t, "THAW_PYTHON_WEBSOCKETS", `is not set: eval "$(.ci/components)" sets it`)
	}
	exe, err := os.Executable() // see TestMain
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, map[string]string{
		"small.yaml": tiny(t, "small", ""), "money.yaml": tiny(t, "money", ""), "auto.yaml": intentFile,
		"fake.yaml": modelFile("fake", fmt.Sprintf("  engine: command\n  args: [%q, bench-engine, --addr, \"127.0.0.1:{port}\"]\n", exe)),
		"slow.yaml": "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: slow}\nspec:\n  rules: [{name: all, to: [fake]}]\n",
	})
	var key struct{ Key string }
	r := p.do("POST", "/api/v1/keys", `{"team":"default"}`, "Authorization", p.admin())
	if err := json.Unmarshal([]byte(r.body), &key); err != nil || key.Key == "" {
		t.Fatal(err, r)
	}
	client := scriptClient(t, filepath.Join(where, "bin", "python"), []string{filepath.Join("..", "..", "deploy", "clients", "python", "cases_websockets.py")},
		"THAW_BASE_URL="+p.url+"/v1", "THAW_API_KEY="+key.Key)
	do := func(name string) seen {
		t.Helper()
		s, err := client(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := do("handshake"); s.Text != "thaw.v1" || s.Finish != "" {
		t.Errorf("handshake: %+v", s)
	}
	if e := do("refused").Error; e == nil || e.Status != 401 || e.Code != "invalid_api_key" {
		t.Errorf("refused: %+v", e)
	}
	for _, c := range []struct{ name, kinds, finish string }{
		{"ping", "pong pong", ""},
		{"again", "generation_start token generation_complete", ""},
		{"messages", "generation_start token generation_complete", ""},
		{"cancel", "generation_start token error generation_complete pong", ""},
		{"faults", "error error error error error", "1008"},
		{"drain_open", "generation_start token", ""},
	} {
		if c.name == "again" {
			checkTyping(t, do("typing").Frames)
		}
		s := do(c.name)
		got := strings.Replace(kindsOf(s.Frames), " error token ", " error ", 1) // a token may come before the cancel
		if got != c.kinds || s.Finish != c.finish {
			t.Errorf("%s: %s %q, want %s %q", c.name, got, s.Finish, c.kinds, c.finish)
		}
		if c.name == "faults" {
			for i, code := range []string{"request_too_large", "invalid_request", "invalid_value", "conflict", "conflict"} {
				if i < len(s.Frames) && s.Frames[i].Code != code {
					t.Errorf("fault %d: %+v, want %s", i, s.Frames[i], code)
				}
			}
		}
		for _, f := range s.Frames {
			if c.name == "cancel" && (f.Type == "error" && f.Code != "conflict" || f.Type == "generation_complete" && f.Reason != "cancelled") {
				t.Errorf("cancel: %+v", f)
			}
		}
	}
	ended := make(chan seen, 1)
	go func() { s, _ := client(t.Context(), "drain"); ended <- s }()
	p.stop()
	if s := <-ended; kindsOf(s.Frames) != "token generation_complete" || s.Finish != "1001 1001" {
		t.Errorf("drain: %s, closed by %s", kindsOf(s.Frames), s.Finish)
	}
}

// checkTyping checks the frames of a text that was typed and submitted.
func checkTyping(t *testing.T, frames []socketFrame) {
	t.Helper()
	var sure, started, complete socketFrame
	text := ""
	for _, f := range frames {
		switch f.Type {
		case "intent_change":
			if f.New == "billing" {
				sure = f
			}
		case "generation_start":
			started = f
		case "token":
			text += f.Content
		case "generation_complete":
			complete = f
		}
	}
	if sure.Rule != "billing" || sure.Target != "money" || sure.Prepares != "model" || sure.Confidence < 0.6 {
		t.Errorf("the intent: %+v", sure)
	}
	if started.Model != "money" || text == "" || complete.Reason == "" || complete.Usage.Total == 0 || complete.Timing.Total == 0 {
		t.Errorf("the answer: %+v %q %+v", started, text, complete)
	}
}

// socketFrame is what a socket sends.
type socketFrame struct {
	Type, Old, New, Rule, Target, Prepares, Model, Content, Code string

	Confidence float64
	Reason     string `json:"finish_reason"`
	Usage      struct {
		Total int `json:"total_tokens"`
	}
	Timing struct {
		Total float64 `json:"total_ms"`
	}
}

// kindsOf are the kinds of frames in their order, equal neighbours once, without progress.
func kindsOf(frames []socketFrame) string {
	var kinds []string
	for _, f := range frames {
		if n := len(kinds); f.Type != "progress" && (n == 0 || kinds[n-1] != f.Type || f.Type == "error" || f.Type == "pong") {
			kinds = append(kinds, f.Type)
		}
	}
	return strings.Join(kinds, " ")
}
