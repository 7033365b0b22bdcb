package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

var (
	guideFrames  = regexp.MustCompile("(?s)```json\n(.*?)```")
	guideConnect = regexp.MustCompile(`new WebSocket\("ws://127\.0\.0\.1:8080([^"]*)", \["([^"]*)", "([^"]*)" \+ key\]\)`)
	guideSends   = regexp.MustCompile(`(?m)^socket\.send\("([^"]*)"\);`)
)

// switchboard is the files of deploy/example/switchboard.
func switchboard(t *testing.T) map[string]string {
	t.Helper()
	example, err := filepath.Abs("../../deploy/example/switchboard")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range []string{"tiny.yaml", "auto.yaml"} {
		b, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(b), "../../../functions/shipped/tiny", tinyDir(t), 1)
		files[name] = strings.ReplaceAll(text, "source: ./", "source: "+example+"/")
	}
	return files
}

// TestSocketGuide does what the guide of sockets has its reader do: it serves the example,
// runs the commands, sends what the page sends, and gets the frames that the guide shows, in
// their order with all their fields.
func TestSocketGuide(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(guidePages + "socket.md")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, switchboard(t), "--warm", "off")
	commands := readCommands(guideCommands.FindStringSubmatch(string(page))[1])
	for _, c := range commands {
		p.try(c)
	}
	var key struct{ Key string }
	if r := p.do("POST", "/api/v1/keys", `{"team":"default"}`, "Authorization", p.admin()); json.Unmarshal([]byte(r.body), &key) != nil || key.Key == "" {
		t.Fatal(r)
	}
	to, sends := guideConnect.FindStringSubmatch(string(page)), guideSends.FindAllStringSubmatch(string(page), -1)
	frames := strings.Split(strings.TrimSpace(guideFrames.FindStringSubmatch(string(page))[1]), "\n")
	if len(commands) != 3 || to == nil || len(sends) != 2 || len(frames) != 4 {
		t.Fatalf("the guide has %d commands, %d messages and %d frames", len(commands), len(sends), len(frames))
	}
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(p.url, "http")+to[1], &websocket.DialOptions{Subprotocols: []string{to[2], to[3] + key.Key}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	send := func(text string) {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range sends {
		send(m[1])
	}
	answer := ""
	for i := 0; i < len(frames); {
		var want, got map[string]any
		if err := json.Unmarshal([]byte(frames[i]), &want); err != nil {
			t.Fatal(frames[i], err)
		}
		_, b, err := c.Read(t.Context())
		if err != nil || json.Unmarshal(b, &got) != nil {
			t.Fatalf("waiting for %s: %s %v", frames[i], b, err)
		}
		switch got["type"] {
		case "progress":
			continue
		case "token":
			answer += got["content"].(string)
			if want["type"] != "token" {
				continue // the guide shows one of them
			}
		}
		for name, value := range want {
			if got[name] != value {
				t.Fatalf("%s, the guide has %s", b, frames[i])
			}
		}
		i++
	}
	if answer == "" {
		t.Error("the answer has no text")
	}

	// The other adapter is loaded while its question is typed.
	for _, text := range []string{"my ", "my screen ", "my screen is ", "my screen is broken "} {
		send(text)
	}
	p.eventually("the adapter is loaded before the submit", func() bool {
		return strings.Contains(p.do("GET", "/api/v1/replicas", "", "Authorization", p.admin()).body, `"repair"`)
	})
	send("__submit__")
	seen := ""
	for !strings.Contains(seen, "generation_complete") {
		_, b, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen += string(b) + "\n"
	}
	for _, want := range []string{`"target":"tiny:repair","prepares":"adapter"`, `"adapter":"repair","model":"tiny","cold":false`, `"type":"token"`} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %s in\n%s", want, seen)
		}
	}
	metrics := p.do("GET", "/metrics", "", "Authorization", p.admin()).body
	for _, want := range []string{
		`thaw_speculation_total{kind="model",result="late",router="default/auto",team="default"} 1`,
		`thaw_speculation_total{kind="adapter",result="hit",router="default/auto",team="default"} 1`,
		`thaw_speculation_saved_seconds_total{kind="adapter",router="default/auto",team="default"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestSocketAgent: what is typed starts a model on an agent, and loads an adapter there.
func TestSocketAgent(t *testing.T) {
	t.Parallel()
	p := start(t, switchboard(t), "--warm", "off", "--memory", "16Mi")
	p.agent("second", "--memory", "1Gi")
	p.eventually("the agent has joined", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(p.url, "http")+"/ws/far", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, step := range []struct{ text, until string }{{"where is my invoice ", `"state":"READY"`}, {"my screen is broken ", `"repair"`}} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(step.text)); err != nil {
			t.Fatal(err)
		}
		p.eventually(step.text+"has its effect before a submit", func() bool {
			body := p.do("GET", "/api/v1/replicas", "").body
			return strings.Contains(body, step.until) && strings.Contains(body, `"node":"second"`)
		})
	}
}
