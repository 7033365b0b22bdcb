package activator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/functions"
)

// vendor is an API of another party: a TLS server on this machine whose answers are
// scripted as those of engines are.
type vendor struct {
	*engine
	url    string
	ln     net.Listener
	config *tls.Config
	roots  *x509.CertPool
	ends   sync.WaitGroup
	dials  int
}

func newVendor(t testing.TB, answer func(c net.Conn, r *http.Request, body string) bool) *vendor {
	t.Helper()
	kit := httptest.NewUnstartedServer(nil)
	kit.StartTLS()
	certificate, roots := kit.TLS.Certificates, x509.NewCertPool()
	roots.AddCert(kit.Certificate())
	kit.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &vendor{engine: &engine{conns: map[net.Conn]bool{}, answer: answer}, url: "https://" + ln.Addr().String() + "/v1", ln: ln,
		config: &tls.Config{Certificates: certificate}, roots: roots}
	v.ends.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.dials++
			s := tls.Server(c, v.config)
			v.conns[s] = true
			v.mu.Unlock()
			v.ends.Go(func() { v.serve(s) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		v.kill()
		v.ends.Wait()
	})
	return v
}

const testKey = "sk-secret-of-the-vendor"

func (v *vendor) remote(change func(*functions.Remote)) *functions.Remote {
	r := functions.NewRemote()
	r.Metadata.Name = "cloud"
	r.Spec.URL, r.Spec.Model = v.url, "vendor-model"
	r.Spec.KeyFrom.Env, r.Spec.Allow = "CLOUD_KEY", functions.DataSecret
	r.Spec.Timeouts.Connect = functions.Duration(10 * time.Second)
	if change != nil {
		change(r)
	}
	return r
}

// newRemoteEnv is a data path with one Remote, that of the vendor.
func newRemoteEnv(t testing.TB, v *vendor, change func(*functions.Remote), options func(*remote.Options)) (*testEnv, *remote.Remotes) {
	t.Helper()
	var remotes *remote.Remotes
	w := newTestEnv(t, func(o *Options) {
		ro := remote.Options{Getenv: func(name string) string { return map[string]string{"CLOUD_KEY": testKey}[name] }, Roots: v.roots, Metrics: o.Metrics.(remote.Metrics), Log: o.Log}
		if options != nil {
			options(&ro)
		}
		remotes = remote.New(ro)
		o.Remotes = remotes
	})
	remotes.Set([]*functions.Remote{v.remote(change)})
	w.reg.Add(remotes.Samples)
	return w, remotes
}

const (
	cloudPlain  = `{"model":"cloud","messages":[{"role":"user","content":"hello"}]}`
	cloudStream = `{"model":"cloud","stream":true,"messages":[{"role":"user","content":"hello"}]}`
	vendorPlain = `{"id":"chatcmpl-1","object":"chat.completion","model":"vendor-model-2026-01-01","choices":[{"index":0,"message":{"role":"assistant","content":"the \"model\": \"x\" {"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}`
)

func vendorAnswer(c net.Conn, r *http.Request, body string) bool {
	if !strings.Contains(body, `"stream":true`) {
		return replyComplete(c, vendorPlain)
	}
	if !writeString(c, chunkHead) {
		return false
	}
	for _, e := range []string{event1, event2, event3, `data: {"id":"c","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":500}}` + "\n\n", eventDone} {
		e = strings.Replace(e, `{"id":"c",`, `{"id":"c","model":"vendor-model-2026-01-01",`, 1)
		half := len(e) / 3
		if !chunk(c, e[:half]) || !chunk(c, e[half:]) {
			return false
		}
	}
	return writeString(c, "0\r\n\r\n")
}

// TestRemote: a Remote is called by name over TLS, with its own name, key and few fields;
// the answer names it as clients do.
func TestRemote(t *testing.T) {
	v := newVendor(t, vendorAnswer)
	w, _ := newRemoteEnv(t, v, nil, nil)
	r := w.post("/v1/chat/completions", cloudPlain, "Authorization", "Bearer client-key", "thaw-session", "s", "thaw-data", "public", "Cookie",
		"c=1", "X-Forwarded-For", "10.1.1.1")
	if want := strings.Replace(vendorPlain, "vendor-model-2026-01-01", "cloud", 1); r.status != 200 || r.body != want {
		t.Fatalf("%d %s\nwant %s", r.status, r.body, want)
	}
	s := w.post("/v1/chat/completions", cloudStream)
	if s.status != 200 || !strings.HasSuffix(s.body, "[DONE]\n\n") || strings.Contains(s.body, "vendor") || strings.Count(s.body, `"model":"cloud"`) != 3 || strings.Contains(s.body, "usage") {
		t.Errorf("%d %s", s.status, s.body)
	}
	wireRules(t, s.body)
	seen := v.requests()
	for i, q := range seen {
		if q.path != "/v1/chat/completions" || !strings.Contains(q.body, `"model":"vendor-model"`) || q.head.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("request %d: %+v", i, q)
		}
		for name := range q.head {
			switch name {
			case "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "X-Request-Id", "Authorization", "Thaw-Depth":
			default:
				t.Errorf("request %d has %s", i, name)
			}
		}
	}
	if v.dials != 1 {
		t.Errorf("%d connections for two requests", v.dials)
	}
	if w.wakes+w.nudges != 0 || len(w.engineRequests()) != 0 {
		t.Error("the platform was asked about a Remote")
	}
}

// TestRemoteIsRude: what an API can do wrong ends in a typed error at the client, without
// the key, and in the reason of the Remote's state.
func TestRemoteIsRude(t *testing.T) {
	raw := func(s string) func(net.Conn, *http.Request, string) bool {
		return func(c net.Conn, _ *http.Request, _ string) bool { writeString(c, s); return false }
	}
	json := func(status, fields, body string) func(net.Conn, *http.Request, string) bool {
		return raw(fmt.Sprintf("HTTP/1.1 %s X\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s", status, fields, len(body),
			body))
	}
	stall := func(c net.Conn, _ *http.Request, _ string) bool {
		c.Read(make([]byte, 1))
		return false
	}
	short := func(r *functions.Remote) {
		r.Spec.Timeouts.FirstToken, r.Spec.Timeouts.Idle = functions.Duration(50*time.Millisecond), functions.Duration(50*time.Millisecond)
	}
	withoutPath := func(r *functions.Remote) { r.Spec.URL = strings.TrimSuffix(r.Spec.URL, "/v1") }
	for _, c := range []struct {
		name   string
		answer func(net.Conn, *http.Request, string) bool
		change func(*functions.Remote)
		status int
		code   string
		says   string
		fails  bool // after three
	}{
		{"garbage in place of HTTP", raw("hello\r\n\r\n"), nil, 502, "engine_crashed", "not HTTP", true},
		{"HTML", raw("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<br>"), nil, 502, "engine_crashed", "no JSON", true},
		{"broken JSON", json("200", "", `{"id":`), nil, 502, "engine_crashed", "no JSON", true},
		{"a length that is too long", raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{}"), nil, 502, "engine_crashed", "broke", true},
		{"a length that is too short", raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n{\"id\":1}"), nil, 502, "engine_crashed", "no JSON", true},
		{"gzip", json("200", "content-encoding: gzip\r\n", "{}"), nil, 502, "engine_crashed", "compressed", true},
		{"silence", stall, short, 504, "engine_hung", "longer than timeouts.firstToken (50ms)", true},
		{"500", json("500", "", `{"error":{"message":"oops","code":"theirs"}}`), nil, 500, "theirs", "oops", true},
		{"500 in HTML", raw("HTTP/1.1 500 X\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<br>"), nil, 500, "internal_error", "The remote `cloud` answers 500 without words that may be shown", true},
		{"a page of its guard", raw("HTTP/1.1 403 X\r\ncontent-type: text/html\r\ncontent-length: 40\r\n\r\n<title>Just a moment...</title>Enable it"), nil, 403, "permission_denied", "The remote `cloud` answers 403: Just a moment... Enable it", true},
		{"a page of its login", raw("HTTP/1.1 200 X\r\ncontent-type: text/html\r\ncontent-length: 29\r\n\r\n<title>Sign in</title>Sign in"), nil, 502, "engine_crashed", `no JSON but \"text/html\": Sign in`, true},
		{"200 that is an error", json("200", "", `{"error":{"message":"upstream failed","code":502}}`), nil, 502, "engine_crashed", "upstream failed", true},
		{"200 that refuses", json("200", "", `{"error":{"message":"too long","type":"invalid_request_error"}}`), nil, 400, "invalid_request", "too long", false},
		{"redirect", raw("HTTP/1.1 307 X\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"), nil, 502, "engine_crashed", `it redirects (307) to \"http://169.254.169.254/\", and redirects are not followed; set url`, true},
		{"401 that repeats the key", json("401", "", `{"error":{"message":"wrong key: `+testKey+`"}}`), nil, 503, "service_unavailable", "refuses the key of this server (401), which is in the variable", true},
		{"401 in its words", json("401", "", `{"error":{"message":"No such key."}}`), nil, 503, "service_unavailable", "(401: No such key), which is in the variable", true},
		{"403 about the account", json("403", "", `{"error":{"message":"no","code":"account_deactivated"}}`), nil, 503, "service_unavailable", "refuses the key", true},
		{"403 without a reason", json("403", "", `{"error":{"message":"no"}}`), nil, 403, "", "no", true},
		{"403 about the request", json("403", "", `{"error":{"message":"flagged","code":"content_policy_violation"}}`), nil, 403, "content_policy_violation", "flagged", false},
		{"400", json("400", "", `{"error":{"message":"bad","code":"theirs"}}`), nil, 400, "theirs", "bad", false},
		{"400 that repeats the key", json("400", "", `{"error":{"message":"Bearer `+testKey+`"}}`), nil, 400, "invalid_request", "The remote `cloud` answers 400 without words that may be shown", false},
		{"404 in HTML", raw("HTTP/1.1 404 X\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<br>"), nil, 404, "unknown_endpoint", "does not serve /v1/chat/completions", false},
		{"404, a url without a path", json("404", "", `{"detail":"Not Found"}`), withoutPath, 404, "unknown_endpoint", "answers 404 at /chat/completions: Not Found; the url of most servers ends with /v1, such as https://127.0.0.1:", false},
		{"405 without words, a url without a path", raw("HTTP/1.1 405 X\r\ncontent-length: 0\r\n\r\n"), withoutPath, 404, "unknown_endpoint", "answers 405 at /chat/completions; the url of most", false},
		{"404 of a model, a url without a path", json("404", "", `{"error":{"message":"The model x does not exist"}}`), withoutPath, 404, "not_found", "answers 404: The model x does not exist (model: vendor-model in its file)", false},
		{"LM Studio, a url without a path", json("200", "", `{"error":"Unexpected endpoint or method. (POST /chat/completions)"}`), withoutPath, 404, "unknown_endpoint", "Unexpected endpoint or method. (POST /chat/completions); the url of most servers ends with /v1", false},
		{"a page, a url without a path", raw("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<br>"), withoutPath, 502, "engine_crashed", "no JSON but \\\"text/html\\\"; the url of most servers ends with /v1", true},
		{"a thaw that loads", json("503", "retry-after: 7\r\n", `{"error":{"message":"loading","code":"model_loading"}}`), nil, 503, "model_loading", "loading", false},
		{"no TLS", nil, func(r *functions.Remote) { r.Spec.URL = strings.Replace(r.Spec.URL, "127.0.0.1", "localhost", 1) }, 503, "service_unavailable", "certificate is not for", true},
		{"refused", nil, func(r *functions.Remote) { r.Spec.URL = "https://127.0.0.1:1/v1" }, 503, "service_unavailable", "127.0.0.1:1 refuses connections: start it, or correct url", true},
		{"a private address", nil, func(r *functions.Remote) { r.Spec.URL = "https://10.0.0.1/v1" }, 503, "service_unavailable", "not public", true},
		{"http elsewhere", nil, func(r *functions.Remote) { r.Spec.URL = "http://203.0.114.1/v1" }, 503, "service_unavailable", "https", true},
		{"no key", nil, func(r *functions.Remote) { r.Spec.KeyFrom.Env = "OTHER_KEY" }, 503, "service_unavailable", "OTHER_KEY is empty or not set", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVendor(t, c.answer)
			w, remotes := newRemoteEnv(t, v, c.change, nil)
			for i := range 3 {
				body := cloudPlain
				if i == 1 {
					body = cloudStream
				}
				r := w.post("/v1/chat/completions", body)
				if i > 0 && c.fails && r.status == 503 && strings.Contains(r.body, "does not answer now") { // the circuit is open already
					continue
				}
				if r.status != c.status || r.code() != c.code || !strings.Contains(r.body, c.says) {
					t.Errorf("%d: status %d, %s", i, r.status, r.body)
				}
				if c.status == 503 && c.code == "model_loading" && r.head.Get("Retry-After") != "7" {
					t.Errorf("retry-after is %q", r.head.Get("Retry-After"))
				}
				if strings.Contains(r.body, testKey) {
					t.Error("the key is in the answer")
				}
			}
			state, reason, _ := remotes.State(functions.Name{Team: "default", Name: "cloud"})
			if (state == functions.Failed) != c.fails || c.fails == (reason == "") {
				t.Errorf("state %s: %s", state, reason)
			}
			list := w.do(context.Background(), "GET", "/v1/models", "")
			if strings.Contains(list.body, `"failed":true`) != c.fails {
				t.Errorf("in the list: %s", list.body)
			}
			if c.fails { // and a request now is refused at once, if it is not the probe
				n := len(v.requests())
				if r := w.post("/v1/chat/completions", cloudPlain); r.status < 500 || len(v.requests()) > n+1 {
					t.Errorf("with an open circuit: %d %s", r.status, r.body)
				}
			}
			if strings.Contains(w.logs.String()+reason+list.body, testKey) {
				t.Error("the key is in the log or the list")
			}
			if got := metric(t, w, "thaw_spend_total"); got != "" {
				t.Errorf("errors cost %s", got)
			}
		})
	}
}
