package enginehttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
)

// TestForward: the engine gets its own key, an id of ours and the passed fields only; the
// client gets the engine's status, fields and body; the hooks are called once each.
func TestForward(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer engine-key" || len(r.Header.Get("X-Request-Id")) != 32 || r.Header.Get("X-Other") != "" {
			t.Errorf("the engine got %v", r.Header)
		}
		w.Header().Set("X-Engine", "yes")
		w.WriteHeader(http.StatusTeapot)
		io.Copy(w, r.Body)
	}))
	defer engine.Close()
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	firstBytes, closes := 0, make(chan struct{}, 2)
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: func(req *httpserver.Request, res *httpserver.Response) {
		if !AllowMethod("POST", req, res) {
			return
		}
		err := Forward(engines, req, res, Call{
			Engine: strings.TrimPrefix(engine.URL, "http://"), Key: "engine-key", Method: "POST", Path: "/v1/completions", Body: BodyOf(req),
			FirstByte: func() { firstBytes++ }, Done: func() { closes <- struct{}{} },
		})
		if err != nil {
			t.Error(err)
		}
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer func() {
		srv.Shutdown(t.Context())
		<-served
	}()
	do := func(method string) (*http.Response, string) {
		req, _ := http.NewRequestWithContext(t.Context(), method, "http://"+listener.Addr().String()+"/infer", strings.NewReader("body"))
		req.Header.Set("Authorization", "Bearer client-key")
		req.Header.Set("X-Request-Id", "r1")
		req.Header.Set("X-Other", "no")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res, string(b)
	}
	if res, body := do("POST"); res.StatusCode != http.StatusTeapot || res.Header.Get("X-Engine") != "yes" || body != "body" {
		t.Errorf("%d %v %q", res.StatusCode, res.Header, body)
	}
	select {
	case <-closes:
	case <-time.After(20 * time.Second):
		t.Fatal("Done was not called at the end of the answer")
	}
	if firstBytes != 1 || len(closes) != 0 {
		t.Errorf("FirstByte was called %d times, Done %d times more", firstBytes, len(closes))
	}
	if res, body := do("PUT"); res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST" ||
		!strings.Contains(body, "POST") {
		t.Errorf("%d %v %q", res.StatusCode, res.Header, body)
	}
}

// TestForwardReportsUnsolicited: bytes of the engine that no request asked for are reported
// to the gateway, which counts them, and none of them are passed on.
func TestForwardReportsUnsolicited(t *testing.T) {
	engine, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	go func() {
		for {
			c, err := engine.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for br := bufio.NewReader(c); ; {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokand more")
				}
			}()
		}
	}()
	engines, far := upstream.New(upstream.Options{}), upstream.New(upstream.Options{})
	defer engines.Close()
	defer far.Close()
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: func(req *httpserver.Request, res *httpserver.Response) {
		if err := Forward(engines, req, res, Call{Engine: engine.Addr().String(), Method: "POST", Path: "/v1/completions"}); err != nil {
			t.Error(err)
		}
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer func() {
		srv.Shutdown(t.Context())
		<-served
	}()
	for i := range 3 {
		r, err := far.Do(t.Context(), &upstream.Request{Addr: listener.Addr().String(), Method: "POST", Path: "/infer"})
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(r); string(b) != "ok" || r.Unsolicited != min(i, 1) || r.FirstUnsolicited != (i == 1) {
			t.Errorf("answer %d: %q, %d, %v", i, b, r.Unsolicited, r.FirstUnsolicited)
		}
		r.Close()
	}
}

// TestCheckRequest: what an engine compiles is checked beside it, as the gateway does.
func TestCheckRequest(t *testing.T) {
	const body = `{"model":"m","tools":[{"name":"f","input_schema":{"maxLength":524288}}]}`
	for engine, refused := range map[functions.Engine]bool{functions.EngineVLLM: false, functions.EngineLlamaCpp: true, "": false} {
		req := httpserver.NewRequest(nil, "POST", "/v1/messages", nil, []byte(body), nil, nil)
		if _, e := CheckRequest(req, req.Path, engine); (e != nil) != refused {
			t.Errorf("%s: %v", engine, e)
		}
	}
}
