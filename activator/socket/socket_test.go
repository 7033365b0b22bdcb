package socket

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// TestSession: text frames and JSON frames, a submit through the whole data path, and the
// answer as frames.
func TestSession(t *testing.T) {
	r := newRig(t, nil)
	c := r.connect("/ws/me")
	c.say("__ping__")
	if f, err := c.next(); err != nil || f.Type != "pong" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say("where", "where is ", "where is my", "where is my invoice")
	f, err := c.next()
	if err != nil || f.Type != "intent_change" || f.Rule != "general" || f.Target != "tiny" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say("__submit__")
	if f, _ := c.until("generation_start"); f.Model != "tiny" || f.Adapter != "" || f.Cold {
		t.Fatalf("%+v", f)
	}
	f, text := c.until("generation_complete")
	if text != "one two" || f.Usage["total_tokens"] != 5.0 || f.FinishReason != "stop" || f.Timing["total_ms"] == nil ||
		f.Timing["first_token_ms"] == nil {
		t.Fatalf("%q %+v", text, f)
	}
	if b := <-r.bodies; !strings.Contains(b, `"model":"tiny"`) || !strings.Contains(b, "where is my invoice") {
		t.Fatalf("the engine got %s", b)
	}
	c.say(`{"type":"partial","messages":[{"role":"user","content":"hi there"}]}`, `{"type":"submit"}`)
	if _, text := c.until("generation_complete"); text != "one two" {
		t.Fatalf("%q", text)
	}
	if b := <-r.bodies; !strings.Contains(b, `"messages":[{"role":"user","content":"hi there"}]`) {
		t.Fatalf("the engine got %s", b)
	}
	c.say(`{"type":"submit","text":"{\"type\":\"ping\"}"}`)
	c.until("generation_complete")
	c.say(`{"type":"ping"}`)
	c.until("pong")
	c.say(`{"type":"submit","text":"refuse"}`)
	if f, err := c.next(); err != nil || f.Type != "error" || f.Code != "invalid_value" || f.Message != "no such thing" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say(`{"type":"submit","text":"break"}`)
	c.until("generation_start")
	for f.Type != "error" {
		if f, err = c.next(); err != nil {
			t.Fatal(err)
		}
	}
	if f.Code != "engine_crashed" {
		t.Fatalf("%+v", f)
	}
	c.Close(websocket.StatusNormalClosure, "")
}

// TestHandshake: what is refused before the upgrade, and that the key is neither echoed nor
// logged.
func TestHandshake(t *testing.T) {
	r := newRig(t, nil)
	key, _, err := r.keys.Create("default", "", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path      string
		head      []string
		protocols []string
		status    int
		code      string
	}{
		{"/ws/me", nil, nil, 401, "invalid_api_key"},
		{"/ws/me", []string{"Authorization", "Bearer wrong"}, nil, 401, "invalid_api_key"},
		{"/ws/me", nil, []string{"thaw.v1", "thaw.key.wrong"}, 401, "invalid_api_key"},
		{"/ws/me", nil, []string{"thaw.key." + key}, 400, "thaw.v1"},
		{"/ws/", []string{"Authorization", "Bearer " + key}, nil, 400, "client_id"},
		{"/ws/a%20b", []string{"Authorization", "Bearer " + key}, nil, 400, "CLIENT_ID"},
		{"/ws/a/b", []string{"Authorization", "Bearer " + key}, nil, 400, "CLIENT_ID"},
		{"/ws/" + strings.Repeat("a", 129), []string{"Authorization", "Bearer " + key}, nil, 400, "CLIENT_ID"},
		{"/ws/me?router=none", []string{"Authorization", "Bearer " + key}, nil, 404, "not_found"},
		{"/ws/me?key=" + key, []string{"Authorization", "Bearer " + key}, nil, 400, "never into a URL"},
		{"/ws/me", []string{"Authorization", "Bearer " + key, "Origin", "https://evil.example"}, nil, 403, "--origin"},
		{"/ws/me", []string{"Authorization", "Bearer " + key, "Origin", "http://localhost:3000"}, nil, 101, ""},
		{"/ws/me", []string{"Authorization", "Bearer " + key, "Origin", "app://x"}, nil, 101, ""},
		{"/ws/me?router=default%2Fauto", []string{"X-Api-Key", key}, nil, 101, ""},
		{"/ws/me", nil, []string{"thaw.v1", "thaw.key." + key}, 101, ""},
		{"/v1/realtime", []string{"Authorization", "Bearer " + key}, nil, 400, "WebSockets are at /ws/CLIENT_ID alone."},
	} {
		head := http.Header{}
		for i := 0; i+1 < len(c.head); i += 2 {
			head.Set(c.head[i], c.head[i+1])
		}
		ws, res, err := r.dial(c.path, head, c.protocols...)
		if res == nil {
			t.Fatalf("%+v: %v", c, err)
		}
		body := make([]byte, 1024)
		if res.Body != nil {
			n, _ := res.Body.Read(body)
			body = body[:n]
		}
		if res.StatusCode != c.status || c.status != 101 && !strings.Contains(strings.ToLower(string(body)), strings.ToLower(c.code)) {
			t.Errorf("%s %v: %d %s", c.path, c.protocols, res.StatusCode, body)
		}
		for name, values := range res.Header {
			if strings.Contains(strings.Join(values, " "), key) {
				t.Errorf("%s: the answer's %s has the key", c.path, name)
			}
		}
		if strings.Contains(string(body), key) {
			t.Errorf("%s: the answer has the key", c.path)
		}
		if c.status == 101 && ws != nil {
			if want := map[bool]string{true: "thaw.v1"}[len(c.protocols) > 0]; ws.Subprotocol() != want {
				t.Errorf("subprotocol %q", ws.Subprotocol())
			}
			ws.say(`{"type":"submit","text":"hello"}`)
			ws.until("generation_complete")
			ws.say(strings.Split(strings.Repeat(`{"type":"cancel"} `, maxFaults), " ")[:maxFaults]...)
			for range maxFaults {
				ws.next()
			}
			ws.wantClose(websocket.StatusPolicyViolation)
		}
	}
	r.stop(testTimeout)
	logs := r.logs.String()
	if !strings.Contains(logs, "a socket was ended for its faults") || !strings.Contains(logs, "msg=request") {
		t.Errorf("nothing is logged:\n%s", logs)
	}
	if strings.Contains(logs, key) || strings.Contains(logs, "thaw.key.") {
		t.Errorf("the log has the key:\n%s", logs)
	}
}

// TestCancel: one generation at a time, ended at the engine by a cancel and by the end of
// the socket.
func TestCancel(t *testing.T) {
	r := newRig(t, nil)
	c := r.connect("/ws/me")
	c.say(`{"type":"submit","text":"endless"}`)
	c.until("token")
	c.say("__submit__")
	if f, err := c.next(); err != nil || f.Type != "error" || f.Code != "conflict" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say(`{"type":"cancel"}`)
	if f, _ := c.until("generation_complete"); f.FinishReason != "cancelled" || f.Usage != nil {
		t.Fatalf("%+v", f)
	}
	expect(t, r.left, "endless")
	c.say(`{"type":"cancel"}`)
	if f, err := c.next(); err != nil || f.Type != "error" || f.Code != "conflict" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say(`{"type":"submit","text":"again"}`)
	c.until("generation_complete")
	c.say(`{"type":"submit","text":"endless"}`)
	c.until("token")
	c.CloseNow()
	expect(t, r.left, "endless")
}

// TestDrain: an idle socket is closed by 1001 at once, one with a generation behind it, and
// at the deadline after an error.
func TestDrain(t *testing.T) {
	r := newRig(t, nil)
	idle, busy := r.connect("/ws/idle"), r.connect("/ws/busy")
	busy.say(`{"type":"submit","text":"endless"}`)
	busy.until("token")
	ended := make(chan error, 1)
	go func() { ended <- r.stop(testTimeout) }()
	idle.wantClose(websocket.StatusGoingAway)
	busy.say(`{"type":"ping"}`)
	busy.until("pong")
	busy.say(`{"type":"cancel"}`)
	busy.until("generation_complete")
	busy.wantClose(websocket.StatusGoingAway)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r = newRig(t, nil)
	c := r.connect("/ws/me")
	c.say(`{"type":"submit","text":"endless"}`)
	c.until("token")
	ended = make(chan error, 1)
	go func() { ended <- r.stop(1) }()
	if f, err := c.next(); err != nil || f.Type != "error" || f.Code != "shutting_down" {
		t.Fatalf("%+v %v", f, err)
	}
	c.wantClose(websocket.StatusGoingAway)
	<-ended
	expect(t, r.left, "endless")
}
