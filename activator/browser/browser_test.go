package browser

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

func ask(g *Guard, method, host string, next httpserver.Handler, fields ...string) httpserver.Response {
	var list []httpserver.Field
	for i := 0; i+1 < len(fields); i += 2 {
		list = append(list, httpserver.Field{Name: fields[i], Value: fields[i+1]})
	}
	req := httpserver.NewRequest(nil, method, "/v1/models", list, nil, &httpserver.Context{}, func() bool { return false })
	req.Host = host
	var res httpserver.Response
	g.Wrap(next)(req, &res)
	return res
}

func header(res httpserver.Response, name string) string {
	for _, f := range res.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

func TestGuard(t *testing.T) {
	g := New(true, []string{"gpu.lab"}, []string{"https://App.example:443", "http://localhost:3000", "app://*"})
	for _, c := range []struct {
		host, origin, site string
		status             int
		names              string // in the refusal
	}{
		{"127.0.0.1:8080", "", "", 200, ""},
		{"localhost", "", "", 200, ""},
		{"LOCALHOST.:8080", "", "", 200, ""},
		{"[::1]:8080", "", "", 200, ""},
		{"app.localhost:8080", "", "", 200, ""},
		{"0.0.0.0:8080", "", "", 200, ""},
		{"[::]:8080", "", "", 200, ""},
		{"0.0.0.0:8080", "https://evil.example", "", 403, "--origin"},
		{"host.docker.internal:8080", "", "", 421, "--host host.docker.internal (THAW_HOST)"},
		{"gpu.lab", "", "", 200, ""},
		{"evil.example:8080", "", "", 421, "--host"},
		{"evil.example:8080", "https://app.example", "", 421, "--host"},
		{"127.0.0.1.evil.example", "", "", 421, "--host"},
		{"10.0.0.1", "", "", 421, "--host"},
		{"127.0.0.1:8080", "http://127.0.0.1:8080", "", 200, ""},
		{"localhost", "http://localhost", "", 200, ""},
		{"127.0.0.1:8080", "http://127.0.0.1:3000", "", 403, "--origin http://127.0.0.1:3000 (THAW_ORIGIN)"},
		{"127.0.0.1:8080", "https://evil.example", "", 403, "--origin https://evil.example "},
		{"127.0.0.1:8080", "null", "", 403, "--origin"},
		{"127.0.0.1:8080", "", "cross-site", 403, "--origin"},
		{"127.0.0.1:8080", "", "same-origin", 200, ""},
		{"127.0.0.1:8080", "https://app.example", "cross-site", 200, ""},
		{"127.0.0.1:8080", "https://APP.example", "", 200, ""},
		{"127.0.0.1:8080", "http://app.example", "", 403, "--origin http://app.example "},
		{"127.0.0.1:8080", "https://app.example.evil.example", "", 403, "--origin"},
		{"127.0.0.1:8080", "https://app.example:8443", "", 403, "--origin https://app.example:8443 "},
		{"127.0.0.1:8080", "http://localhost:3000", "", 200, ""},
		{"127.0.0.1:8080", "app://-", "", 200, ""},
		{"127.0.0.1:8080", "app://obsidian.md", "", 200, ""},
		{"127.0.0.1:8080", "tauri://localhost", "", 403, "--origin tauri://* "},
		{"127.0.0.1:8080", "https://*", "", 403, "--origin"},
	} {
		res := ask(g, "GET", c.host, func(_ *httpserver.Request, res *httpserver.Response) { res.Status = 200 }, "Origin", c.origin,
			"Sec-Fetch-Site", c.site)
		if res.Status != c.status || !strings.Contains(string(res.Body), c.names) {
			t.Errorf("%+v: %d %s", c, res.Status, res.Body)
		}
		if v := header(res, "Vary"); v != "Origin" {
			t.Errorf("%+v: Vary %q", c, v)
		}
		allowed := ""
		if c.status == 200 && c.origin != "" && !strings.HasSuffix(c.origin, c.host) {
			allowed = c.origin
		}
		if a := header(res, "Access-Control-Allow-Origin"); a != allowed {
			t.Errorf("%+v: allows %q", c, a)
		}
		if c := header(res, "Access-Control-Allow-Credentials"); c != "" {
			t.Errorf("credentials: %q", c)
		}
	}
}

func TestPreflight(t *testing.T) {
	g := New(true, nil, []string{"http://localhost:3000"})
	called := 0
	next := func(_ *httpserver.Request, res *httpserver.Response) {
		called++
		e := openai.New(openai.InvalidAPIKey, "")
		res.Status, res.Body = e.Status, e.Body()
	}
	res := ask(g, "OPTIONS", "127.0.0.1:8080", next, "Origin", "http://localhost:3000", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "authorization,content-type", "Access-Control-Request-Private-Network", "true")
	if res.Status != 204 || called != 0 {
		t.Fatalf("%+v", res)
	}
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": "http://localhost:3000", "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
		"Access-Control-Allow-Headers": "authorization,content-type", "Access-Control-Allow-Private-Network": "true",
		"Access-Control-Max-Age": "600", "Access-Control-Allow-Credentials": "",
	} {
		if v := header(res, name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	if v := header(res, "Vary"); !strings.HasPrefix(v, "Origin") {
		t.Errorf("Vary %q", v)
	}
	if res := ask(g, "OPTIONS", "127.0.0.1:8080", next, "Origin", "http://localhost:3000", "Access-Control-Request-Method",
		"POST"); header(res, "Access-Control-Allow-Private-Network") != "" {
		t.Error("a private network is allowed unasked")
	}
	if res := ask(g, "OPTIONS", "127.0.0.1:8080", next, "Origin", "http://localhost:3001", "Access-Control-Request-Method",
		"POST"); res.Status != 403 || called != 0 {
		t.Errorf("another origin: %+v", res)
	}
	if res := ask(g, "POST", "127.0.0.1:8080", next, "Origin", "http://localhost:3000"); res.Status != 401 ||
		header(res, "Access-Control-Allow-Origin") == "" {
		t.Errorf("an error lacks the fields: %+v", res)
	}
}

// TestSharedFields: the fields of an answer may be an array that other answers use.
func TestSharedFields(t *testing.T) {
	shared := make([]httpserver.Field, 1, 8)
	g := New(true, nil, []string{"http://localhost:3000"})
	ask(g, "POST", "localhost", func(_ *httpserver.Request, res *httpserver.Response) { res.Fields = shared }, "Origin",
		"http://localhost:3000")
	if f := shared[:2][1]; f != (httpserver.Field{}) {
		t.Errorf("%+v was written behind the shared fields", f)
	}
}

func TestCheckOrigin(t *testing.T) {
	for origin, good := range map[string]bool{
		"https://a.example": true, "http://a.example:3000": true, "http://[::1]:3000": true, "app://*": true, "vscode-webview://*": true,
		"*": false, "null": false, "": false, "a.example": false, "https://*": false, "http://*.example": false, "https://a.example/": false,
		"https://a.example/x": false, "https://u@a.example": false, "https://a.example,https://b.example": false, "app://x": false, "app://": false,
		"https://a.example?x": false, "https://a example": false, "HTTPS://*": false, "1x://*": false,
	} {
		if err := CheckOrigin(origin); (err == nil) != good {
			t.Errorf("%q: %v", origin, err)
		}
	}
}

// TestExact: names that mean this machine only to some clients are refused, unless they were added.
func TestExact(t *testing.T) {
	g := New(true, []string{"models.localhost"}, nil)
	for host, want := range map[string][2]int{ // of the guard, and of Exact
		"localhost:8080": {200, 200}, "127.0.0.1": {200, 200}, "[::1]:8080": {200, 200}, "models.localhost": {200, 200},
		"app.localhost": {200, 421}, "0.0.0.0:8080": {200, 421}, "[::]:8080": {200, 421}, "evil.example": {421, 421},
	} {
		for i, guard := range []*Guard{g, g.Exact()} {
			res := ask(guard, "GET", host, func(_ *httpserver.Request, res *httpserver.Response) { res.Status = 200 })
			if res.Status != want[i] {
				t.Errorf("%s: %d, want %d (exact: %v)", host, res.Status, want[i], i == 1)
			}
		}
	}
}

// TestForPages: a link of another site may lead to a page, its scripts may ask nothing.
func TestForPages(t *testing.T) {
	strict := New(true, nil, nil)
	pages := strict.ForPages()
	for _, c := range []struct {
		guard        *Guard
		host, origin string
		mode         string
		status       int
	}{
		{pages, "localhost", "", "navigate", 200},
		{pages, "localhost", "", "no-cors", 403},
		{pages, "localhost", "https://evil.example", "navigate", 403},
		{pages, "evil.example", "", "navigate", 421},
		{strict, "localhost", "", "navigate", 403},
	} {
		res := ask(c.guard, "GET", c.host, func(_ *httpserver.Request, res *httpserver.Response) { res.Status = 200 }, "Origin", c.origin,
			"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", c.mode)
		if res.Status != c.status {
			t.Errorf("%s from %q, %s: %d", c.host, c.origin, c.mode, res.Status)
		}
	}
}
