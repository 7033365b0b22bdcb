package socket

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/testkit"
)

// TestBadMessages: each gets an error frame, the socket goes on, and the fifth ends it with
// the code of its fault.
func TestBadMessages(t *testing.T) {
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		kind  websocket.MessageType
		text  string
		error string
		code  websocket.StatusCode
	}{
		"large":            {websocket.MessageText, strings.Repeat("a", 64<<10+1), "request_too_large", websocket.StatusMessageTooBig},
		"not UTF-8":        {websocket.MessageText, "a\xff", "invalid_request", websocket.StatusInvalidFramePayloadData},
		"binary":           {websocket.MessageBinary, "hello", "invalid_request", websocket.StatusUnsupportedData},
		"nothing to do":    {websocket.MessageText, "__submit__", "conflict", websocket.StatusPolicyViolation},
		"cancel":           {websocket.MessageText, `{"type":"cancel"}`, "conflict", websocket.StatusPolicyViolation},
		"type":             {websocket.MessageText, `{"type":"predict"}`, "invalid_value", websocket.StatusPolicyViolation},
		"unknown key":      {websocket.MessageText, `{"type":"partial","text":"a","model":"x"}`, "invalid_json", websocket.StatusPolicyViolation},
		"twice":            {websocket.MessageText, `{"type":"ping","type":"submit"}`, "invalid_json", websocket.StatusPolicyViolation},
		"both":             {websocket.MessageText, `{"type":"partial","text":"a","messages":[]}`, "invalid_value", websocket.StatusPolicyViolation},
		"neither":          {websocket.MessageText, `{"type":"partial"}`, "missing_required_parameter", websocket.StatusPolicyViolation},
		"messages no list": {websocket.MessageText, `{"type":"submit","messages":{}}`, "invalid_value", websocket.StatusPolicyViolation},
		"text in a ping":   {websocket.MessageText, `{"type":"ping","text":"a"}`, "invalid_value", websocket.StatusPolicyViolation},
	} {
		t.Run(name, func(t *testing.T) {
			c2 := r.connect("/ws/me-" + strings.ReplaceAll(name, " ", "-"))
			c2.t = t
			for i := range maxFaults {
				if err := c2.Write(t.Context(), c.kind, []byte(c.text)); err != nil {
					t.Fatal(err)
				}
				if f, err := c2.next(); err != nil || f.Type != "error" || f.Code != c.error || f.Message == "" {
					t.Fatalf("%d: %+v %v", i, f, err)
				}
				if i == 0 {
					c2.say("__ping__")
					c2.until("pong")
				}
			}
			c2.wantClose(c.code)
		})
	}
}

// TestTextsThatLookLikeFrames are texts.
func TestTextsThatLookLikeFrames(t *testing.T) {
	for text, kind := range map[string]string{
		"{":                  kindPartial,
		"{}":                 kindPartial,
		`{"type":1}`:         kindPartial,
		`{"a":"b"}`:          kindPartial,
		`{"type":"cancel"`:   kindPartial,
		`["type"]`:           kindPartial,
		"__submit__ ":        kindPartial,
		"__submit__":         kindSubmit,
		"__ping__":           kindPing,
		"":                   kindPartial,
		` {"type":"submit"}`: kindSubmit,
	} {
		if m, e := parseMessage([]byte(text)); e != nil || m.Type != kind || kind == kindPartial && (m.Text == nil || *m.Text != text) {
			t.Errorf("%q: %+v %v", text, m, e)
		}
	}
}

// TestFlood: more than 200 messages in a second are dropped, and far more end the socket.
func TestFlood(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRig(t, func(o *Options) { o.Now = func() time.Time { return now } })
	c := r.connect("/ws/me")
	done := make(chan error, 1)
	go func() {
		for range 10*maxPerSecond + 1 {
			if err := c.Write(t.Context(), websocket.MessageText, []byte("__ping__")); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	pongs := 0
	for {
		f, err := c.next()
		if err != nil {
			if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
				t.Fatal(err)
			}
			break
		}
		if f.Type == "pong" {
			pongs++
		} else if f.Code != "rate_limit_exceeded" || pongs != maxPerSecond {
			t.Fatalf("%+v behind %d pongs", f, pongs)
		}
	}
	<-done
	if pongs != maxPerSecond {
		t.Errorf("%d messages were served", pongs)
	}
}

// TestTooManySockets: beyond the bounds the handshake is refused.
func TestTooManySockets(t *testing.T) {
	for _, c := range []struct {
		all, key, status int
		code             openai.Code
	}{{1, 0, 503, openai.QueueFull}, {2, 1, 429, openai.RateLimitExceeded}} {
		r := newRig(t, func(o *Options) { o.Sockets, o.SocketsOfKey = c.all, c.key })
		first := r.connect("/ws/a")
		first.say("__ping__")
		first.until("pong")
		_, res, err := r.dial("/ws/b", nil)
		if res == nil || res.StatusCode != c.status || res.Header.Get("Retry-After") == "" {
			t.Fatalf("%+v %v", res, err)
		}
		if b, _ := io.ReadAll(res.Body); !strings.Contains(string(b), string(c.code)) {
			t.Errorf("%s", b)
		}
		first.Close(websocket.StatusNormalClosure, "")
	}
}

// TestReconnect: the session of a client_id and key goes on, that of another does not.
func TestReconnect(t *testing.T) {
	r := newRig(t, nil)
	c := r.connect("/ws/me")
	c.say("remember me now")
	c.until("intent_change")
	c.Close(websocket.StatusNormalClosure, "")
	other := r.connect("/ws/other")
	other.say("__submit__")
	if f, _ := other.next(); f.Code != "conflict" {
		t.Fatalf("another client's session: %+v", f)
	}
	again := r.connect("/ws/me")
	again.say("__submit__")
	again.until("generation_complete")
	if b := <-r.bodies; !strings.Contains(b, "remember me now") {
		t.Errorf("the engine got %s", b)
	}
	if h := <-r.heads; h.Get("Authorization") != "" {
		t.Errorf("the engine got %v", h)
	}
}

// TestSessionsAreBounded in bytes and in time.
func TestSessionsAreBounded(t *testing.T) {
	m, now := sessions{max: 3 * (sessionOverhead + 100)}, time.Unix(1000, 0)
	key := func(i int) sessionKey { return sessionKey{client: fmt.Sprint(i)} }
	for i := range 5 {
		m.store(key(i), session{text: strings.Repeat("x", 100)}, now)
		m.store(key(i), session{text: strings.Repeat("y", 100)}, now)
	}
	for i := range 5 {
		if found := m.find(key(i), now).text != ""; found != (i >= 2) {
			t.Errorf("%d: %v", i, found)
		}
	}
	if m.find(key(4), now.Add(sessionTTL)).text != "" || m.bytes != 0 || len(m.byKey) != 0 || m.order.Len() != 0 {
		t.Errorf("%d bytes of %d sessions are left", m.bytes, len(m.byKey))
	}
}

// TestSilentReader: a client that stops reading is ended by the write deadline, and its
// generation at the engine.
func TestSilentReader(t *testing.T) {
	r := newRigWithin(t, 100*time.Millisecond, nil)
	c := r.connect("/ws/me")
	c.say(`{"type":"submit","text":"flood"}`)
	c.until("token")
	expect(t, r.left, "flood") // nothing is read any more
}

// TestIdle: a silent client is ended.
func TestIdle(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Idle = time.Millisecond })
	r.connect("/ws/me").wantClose(websocket.StatusNormalClosure)
}

// TestPings: a silent socket is pinged again and again, and serves afterwards.
func TestPings(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Ping = time.Millisecond })
	c := r.connect("/ws/me")
	got := c.CloseRead(t.Context())
	testkit.Eventually(t, "three pings", func() bool { return r.pings.Load() >= 3 })
	if got.Err() != nil {
		t.Error("the connection has ended")
	}
}

// TestPlainPaths: /predict and /health.
func TestPlainPaths(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
		has          string
	}{
		{"POST", "/predict?text=where%20is%20it", 200, `"target":"tiny"`},
		{"POST", "/predict?text=a&router=auto", 200, `"rule":"general"`},
		{"POST", "/predict?text=a&router=none", 404, "not_found"},
		{"POST", "/predict", 400, "text"},
		{"POST", "/predict?text=", 400, "text"},
		{"POST", "/predict?text=a&text=b", 400, "text"},
		{"POST", "/predict?text=a&key=b", 400, "text"},
		{"POST", "/predict?text=%ff", 400, "UTF-8"},
		{"POST", "/predict?text=%zz", 400, "text"},
		{"GET", "/predict?text=a", 405, "POST"},
		{"GET", "/health", 200, "ok"},
		{"POST", "/health", 405, "GET"},
		{"GET", "/ws/me", 400, "WebSocket"},
		{"POST", "/ws/me", 400, "WebSocket"},
	} {
		req, _ := http.NewRequest(c.method, "http://"+r.addr+c.path, nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || !strings.Contains(string(b), c.has) {
			t.Errorf("%s %s: %d %s", c.method, c.path, res.StatusCode, b)
		}
		if c.status == 200 && strings.HasPrefix(c.path, predictPath) {
			var rec functions.RouteRecord
			if err := json.Unmarshal(b, &rec); err != nil || rec.Target != "tiny" {
				t.Errorf("%s: %v", b, err)
			}
		}
	}
	text := url.QueryEscape("где счёт")
	if res, err := http.Post("http://"+r.addr+"/predict?text="+text, "", nil); err != nil || res.StatusCode != 200 {
		t.Errorf("%v %v", res, err)
	} else {
		res.Body.Close()
	}
}

// TestRevokedKey: a socket whose key is deleted makes nothing ready and generates nothing.
func TestRevokedKey(t *testing.T) {
	r := newRig(t, nil)
	key, stored, err := r.keys.Create("default", "", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.keys.Create("default", "", false); err != nil {
		t.Fatal(err)
	}
	c, _, err := r.dial("/ws/me", http.Header{"Authorization": {"Bearer " + key}})
	if err != nil {
		t.Fatal(err)
	}
	c.say("hello there ")
	c.until("intent_change")
	if err := r.keys.Delete(stored.ID); err != nil {
		t.Fatal(err)
	}
	c.say("__submit__")
	if f, err := c.next(); err != nil || f.Code != "invalid_api_key" {
		t.Fatalf("%+v %v", f, err)
	}
	c.say("hello there again ")
	if f, err := c.next(); err != nil || f.Code != "invalid_api_key" {
		t.Fatalf("%+v %v", f, err)
	}
	c.wantClose(websocket.StatusPolicyViolation)
}
