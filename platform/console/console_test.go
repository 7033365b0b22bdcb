package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// maxBytes is what all files may have together, compressed.
const maxBytes = 250 << 10

// serve serves a console and returns its URL.
func serve(t *testing.T, version string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httpserver.NewFiberServer(httpserver.Options{Handler: New(version).Serve})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-done
	})
	return "http://" + l.Addr().String()
}

// get sends a request as it stands: no compression is asked for or undone.
func get(t *testing.T, method, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

var reference = regexp.MustCompile(`(?:src|href)="([^"]+)"`)

// TestPages: each page is the same file with a strict policy, and what it loads is there.
func TestPages(t *testing.T) {
	url := serve(t, `v1"<x>`)
	_, index := get(t, "GET", url+"/ui/")
	if !strings.Contains(index, `content="v1&#34;&lt;x&gt;"`) || strings.Contains(index, "{") {
		t.Errorf("the version is not in the page: %s", index)
	}
	for _, p := range []string{"/ui/", "/ui/models", "/ui/models/default/tiny", "/ui/playground", "/ui/cold-starts/cs-1", "/ui/router", "/ui/socket"} {
		res, body := get(t, "GET", url+p)
		if res.StatusCode != 200 || body != index || res.Header.Get("Content-Type") != "text/html; charset=utf-8" ||
			res.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d %v", p, res.StatusCode, res.Header)
		}
		policy := res.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") ||
			strings.Contains(policy, "http") {
			t.Errorf("%s: policy %q", p, policy)
		}
		for _, f := range []string{"X-Content-Type-Options", "Referrer-Policy", "X-Frame-Options", "Cross-Origin-Opener-Policy"} {
			if res.Header.Get(f) == "" {
				t.Errorf("%s: no %s", p, f)
			}
		}
		tag := res.Header.Get("Etag")
		if res, body := get(t, "GET", url+p, "If-None-Match", `"x", `+tag); res.StatusCode != 304 || body != "" || res.Header.Get("Etag") != tag {
			t.Errorf("%s: %d %q", p, res.StatusCode, body)
		}
	}
	if strings.Contains(index, "<style") || strings.Contains(index, "style=") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(index) || regexp.MustCompile(`\son[a-z]+=`).MatchString(index) {
		t.Errorf("the page has a script or style of its own: %s", index)
	}
	loaded := 0
	for _, m := range reference.FindAllStringSubmatch(index, -1) {
		if m[1] == "/ui/" {
			continue // a link
		}
		res, body := get(t, "GET", url+m[1])
		if res.StatusCode != 200 || body == "" || !strings.Contains(res.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", m[1], res.StatusCode, res.Header)
		}
		loaded++
	}
	if loaded < 10 {
		t.Errorf("the page loads %d files: the search is broken", loaded)
	}

	for _, p := range []string{"/ui/nothing", "/ui/main.js", "/ui/assets/main.js", "/ui/..", "/ui//", "/ui/%2e%2e/x", "/ui/0000000000000000/main.js"} {
		res, body := get(t, "GET", url+p)
		if res.StatusCode != 404 || body != index || res.Header.Get("Etag") != "" || res.Header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s: %d %s", p, res.StatusCode, body)
		}
	}
	if res, _ := get(t, "GET", url+"/ui"); res.StatusCode != 308 || res.Header.Get("Location") != "/ui/" {
		t.Errorf("/ui: %d %v", res.StatusCode, res.Header)
	}

	other, _ := get(t, "GET", serve(t, "v2")+"/ui/")
	first, _ := get(t, "GET", url+"/ui/")
	if other.Header.Get("Etag") == first.Header.Get("Etag") {
		t.Error("another version has the same tag")
	}
}

// TestEveryAnswer: no answer is without the policy and what keeps browsers from guessing,
// not a file, a redirect, a page that is not there, or a refusal either.
func TestEveryAnswer(t *testing.T) {
	url := serve(t, "v1")
	_, index := get(t, "GET", url+"/ui/")
	first, _ := get(t, "GET", url+"/ui/")
	paths := []string{"/ui", "/ui/", "/ui/nothing"}
	for _, m := range reference.FindAllStringSubmatch(index, -1) {
		paths = append(paths, m[1])
	}
	for _, p := range paths {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			res, _ := get(t, method, url+p, "If-None-Match", first.Header.Get("Etag"))
			if res.Header.Get("Content-Security-Policy") != policy || res.Header.Get("X-Content-Type-Options") != "nosniff" ||
				res.Header.Get("Referrer-Policy") == "" {
				t.Errorf("%s %s: %d %v", method, p, res.StatusCode, res.Header)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	url := serve(t, "v1")
	whole, _ := get(t, "GET", url+"/ui/")
	if res, body := get(t, "HEAD", url+"/ui/"); res.StatusCode != 200 || body != "" || res.ContentLength != whole.ContentLength ||
		res.Header.Get("Etag") != whole.Header.Get("Etag") {
		t.Errorf("HEAD: %d %q %v", res.StatusCode, body, res.Header)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		for _, p := range []string{"/ui", "/ui/", "/ui/nothing"} {
			if res, body := get(t, method, url+p); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" ||
				!strings.Contains(body, "method_not_allowed") {
				t.Errorf("%s %s: %d %s %v", method, p, res.StatusCode, body, res.Header)
			}
		}
	}
}

var (
	imported = regexp.MustCompile(`(?:from|import)\s*"([^"]+)"`)
	address  = regexp.MustCompile(`(?:https?:)?//[a-z0-9-]+\.[a-z0-9.-]+[^\s"'` + "`" + `)]*`)
)

// TestAssets: all files are small together, of known types, and name nothing elsewhere.
func TestAssets(t *testing.T) {
	f := loadFiles(assets, "v1")
	sum := len(f.index.zipped)
	preloaded := reference.FindAllString(string(f.index.plain), -1)
	for name, a := range f.assets {
		if a.contentType == "" {
			t.Errorf("%s has no type", name)
		}
		sum += len(a.zipped)
		r, err := gzip.NewReader(bytes.NewReader(a.zipped))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, a.plain) {
			t.Errorf("%s is another when compressed: %v", name, err)
		}
		if strings.Contains(name, "/LICENSE-") {
			continue // loaded by no page
		}
		for _, m := range address.FindAllString(string(a.plain), -1) {
			if !strings.HasPrefix(m, "http://www.w3.org/") { // names of XML, which are not loaded
				t.Errorf("%s names %s", name, m)
			}
		}
		for _, word := range []string{"eval(", "new Function", "localStorage", "sessionStorage", "document.cookie", "innerHTML=", "?key="} {
			if strings.Contains(string(a.plain), word) && !(word == "innerHTML=" && strings.Contains(name, "/npm/")) {
				t.Errorf("%s has %s", name, word)
			}
		}
		for _, m := range imported.FindAllStringSubmatch(string(a.plain), -1) {
			to := path.Join(path.Dir(name), m[1])
			if !strings.HasPrefix(m[1], ".") || f.assets[to] == nil {
				t.Errorf("%s imports %s, which is not there", name, m[1])
			}
			if !slices.Contains(preloaded, `href="`+to+`"`) {
				t.Errorf("%s, which %s imports, is not preloaded", to, name)
			}
		}
	}
	t.Logf("%d files, %d bytes compressed", len(f.assets)+1, sum)
	if sum > maxBytes {
		t.Errorf("all files have %d bytes compressed, %d are allowed", sum, maxBytes)
	}
	for _, name := range []string{"LICENSE-preact.txt", "LICENSE-htm.txt", "VERSIONS.txt"} {
		if !slices.ContainsFunc(slices.Collect(keysOf(f.assets)), func(p string) bool { return path.Base(p) == name }) {
			t.Errorf("no %s", name)
		}
	}
}

func keysOf(m map[string]*file) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestCompression(t *testing.T) {
	url := serve(t, "v1")
	_, plain := get(t, "GET", url+"/ui/")
	for header, zipped := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "deflate, gzip;q=0.5": true, "br, gzip ; q=1.0": true,
		"gzip;q=0": false, "gzip; q=0.000": false, "identity": false, "gzipx": false, "gzip;q=x": false,
	} {
		res, body := get(t, "GET", url+"/ui/", "Accept-Encoding", header)
		if res.Header.Get("Vary") != "accept-encoding" || (res.Header.Get("Content-Encoding") == "gzip") != zipped || (body == plain) == zipped {
			t.Errorf("%q: %v", header, res.Header)
		}
	}
}
