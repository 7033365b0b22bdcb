package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestHeads: what a file's plan says for each answer about it, to HEAD and, where the server
// has none, to a request for its first byte.
func TestHeads(t *testing.T) {
	const modified = "Sun, 29 Nov 2026 08:00:00 GMT"
	for _, x := range []struct {
		name         string
		head, get    int // status
		fields       []string
		ofGet        []string
		want         source.Kind
		size         int64
		version, has string
	}{
		{name: "a tag", head: 200, fields: []string{"Content-Length", "5", "ETag", `"v"`, "Last-Modified", modified}, size: 5, version: `"v"`},
		{name: "a weak tag and a time", head: 200, fields: []string{"Content-Length", "5", "ETag", `W/"v"`, "Last-Modified", modified}, size: 5, version: modifiedPrefix + modified + " 5"},
		{name: "a weak tag", head: 200, fields: []string{"Content-Length", "5", "ETag", `W/"v"`}, want: source.Refused, has: "SHA256SUMS"},
		{name: "empty", head: 200, fields: []string{"Content-Length", "0", "ETag", `"v"`}, version: `"v"`},
		{name: "gone", head: 404, want: source.NotFound, has: "404"}, {name: "gone, of no length", head: 404, fields: []string{"Content-Length", "0"}, want: source.NotFound}, {name: "busy", head: 503, want: source.Unavailable, has: "503"}, {name: "a redirect without a target", head: 304, want: source.Refused},
		{name: "no HEAD, a range", head: 405, get: 206, ofGet: []string{"Content-Range", "bytes 0-0/7", "ETag", `"v"`}, size: 7, version: `"v"`},
		{name: "no HEAD, a large file", head: 405, get: 206, ofGet: []string{"Content-Range", "bytes 0-0/5000000000", "ETag", `"v"`}, size: 5_000_000_000, version: `"v"`},
		{name: "no HEAD, the whole", head: 501, get: 200, ofGet: []string{"Content-Length", "7", "ETag", `"v"`}, size: 7, version: `"v"`},
		{name: "no HEAD, an empty file", head: 400, get: 416, ofGet: []string{"Content-Range", "bytes */0", "ETag", `"v"`}, version: `"v"`},
		{name: "no HEAD, a range of an unknown size", head: 403, get: 206, ofGet: []string{"Content-Range", "bytes 0-0/*", "ETag", `"v"`}, want: source.Malformed, has: "its length"},
		{name: "no HEAD, a negative size", head: 403, get: 206, ofGet: []string{"Content-Range", "bytes 0-0/-7", "ETag", `"v"`}, want: source.Malformed},
		{name: "no HEAD, a range that is not there", head: 405, get: 416, ofGet: []string{"Content-Range", "bytes */7", "ETag", `"v"`}, want: source.Changed},
		{name: "no HEAD, refused", head: 403, get: 403, want: source.Denied, has: "403"}, {name: "no HEAD, gone", head: 405, get: 404, want: source.NotFound}, {name: "a bad request is one", head: 400, get: 400, want: source.Refused},
		{name: "HEAD is denied by another status", head: 401, get: 206, ofGet: []string{"Content-Range", "bytes 0-0/7", "ETag", `"v"`}, want: source.Denied},
	} {
		s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fields, status := x.fields, x.head
			if r.Method == http.MethodGet {
				if r.Header.Get("Range") != "bytes=0-0" || r.Header.Get("Accept-Encoding") != "identity" {
					t.Errorf("%s: asked with %v", x.name, r.Header)
				}
				fields, status = x.ofGet, x.get
			}
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			w.WriteHeader(status)
			if r.Method == http.MethodGet && status == 200 {
				fmt.Fprint(w, "1234567")
			}
		}))
		plan, err := s.Plan(t.Context(), at+"/m/x.gguf", nil)
		if source.KindOf(err) != x.want || x.want == "" && err != nil || err != nil && (!strings.Contains(err.Error(), x.has) ||
			!strings.HasPrefix(err.Error(), at+"/m/x.gguf")) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
			continue
		}
		if err == nil && (len(plan.Files) != 1 || plan.Files[0].Size != x.size || plan.Files[0].Version != x.version ||
			plan.Files[0].Ref != at+"/m/x.gguf" || plan.Files[0].Name != "x.gguf") {
			t.Errorf("%s: %+v", x.name, plan.Files)
		}
	}
}

// TestEdgesOfLists: the bounds of a list and of a page, and links that name no file of it.
func TestEdgesOfLists(t *testing.T) {
	sum := strings.Repeat("a", 64)
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s  %d.json\n", sum, i)
		}
		return b.String()
	}
	for n, ok := range map[int]bool{maxFiles: true, maxFiles + 1: false} {
		if got, err := parseSums(lines(n)); (err == nil) != ok || ok && len(got) != n {
			t.Errorf("%d lines: %d, %v", n, len(got), err)
		}
	}
	for line, want := range map[string]string{
		sum + "  a": "a", sum + " *a": "a", sum + " a": "a", sum + "   a": " a", sum + "  ./a/b": "a/b", sum + "  a b": "a b", sum + "  *a": "*a", sum + "  d/SHA256SUMS\n" + sum + "  a": "a",
		sum[1:] + "  a": "!", sum + "a  a": "!", sum[1:] + "g  a": "!", sum + "\ta": "!", sum + " ": "!", "# x": "!", "\r\n": "!",
	} {
		got, err := parseSums(line + "\n")
		if bad := want == "!"; bad != (err != nil) || !bad && (len(got) != 1 || got[0].Name != want || got[0].SHA256 != sum) {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, page := range []string{"/m/", "/m"} { // a folder's page may come without its slash
		for href, want := range map[string]string{
			"a.json": "a.json", "./a.json": "a.json", "sub/": "sub/", "a.json?x=1": "", "a.json#x": "", "https://u@h/m/a.json": "", "//h/m/a.json": "a.json", "//g/m/a.json": "", "../m/a.json": "a.json", "../a.json": "", "": "", ".": "", "sub/a": "", "%zz": "",
		} {
			got, err := parseIndex("text/html", []byte(`<a class="x" href="`+href+`">`), &url.URL{Scheme: "https", Host: "h", Path: page})
			if err != nil || strings.Join(got, " ") != want && !(page == "/m" && strings.HasPrefix(href, "..")) {
				t.Errorf("%s of %s: %q, %v", href, page, got, err)
			}
		}
	}
	s := New(Options{Getenv: func(string) string { return "" }})
	defer s.Close()
	for location, path := range map[string]string{
		"https://a.example": "", "https://a.example/": "", "https://a.example/m/": "/m", "https://a.example/m//": "/m", "https://a.example/a%20b": "/a b", "https://a.example/..m/m..": "/..m/m..",
		"https:///m": "!", "https://": "!", "http://a.example/m": "!", "a.example/m": "!", "https://a.example/m?": "/m", "https://a.example/m?x": "!", "https://a.example/m#x": "!", "https://u@a.example/m": "!",
		"https://a.example/./m": "!", "https://a.example/m/..": "!", "https://a.example/m/%2e%2e/x": "!", "https://10.0.0.1/m": "!", "https://a.example/%": "!",
	} {
		u, err := s.parse(location)
		if bad := path == "!"; bad != (err != nil) || !bad && u.Path != path {
			t.Errorf("%s: %v, %v", location, u, err)
		}
	}
	if u, err := s.parse("https://a.example/a%2Fb%20c/"); err != nil || u.String() != "https://a.example/a/b%20c" {
		t.Errorf("%v, %v", u, err)
	}
	for ref, want := range map[string]source.Kind{"http://a.example/f": source.BadSource, "f": source.BadSource, "%": source.BadSource} {
		if _, err := s.Read(t.Context(), source.File{Name: "f", Ref: ref}, 0, 1); source.KindOf(err) != want {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// TestVersionOfAList: where a server says of no version, the list of digests does; a file that
// comes whole, without a length, in place of a range is not read.
func TestVersionOfAList(t *testing.T) {
	sum := strings.Repeat("A", 64)
	s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "SHA256SUMS"):
			fmt.Fprintf(w, "%s  a.json\n", sum)
		case r.Method == http.MethodHead:
			w.Header().Set("Content-Length", "5")
		default:
			w.(http.Flusher).Flush() // no length
			fmt.Fprint(w, "12345")
		}
	}))
	plan, err := s.Plan(t.Context(), at+"/m", nil)
	if err != nil || len(plan.Files) != 1 || plan.Files[0].Version != "sha256:"+strings.ToLower(sum) || plan.Files[0].Size != 5 {
		t.Fatalf("%+v, %v", plan, err)
	}
	_, err = s.Read(t.Context(), plan.Files[0], 1, 2)
	if source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), "does not give ranges") {
		t.Error(err)
	}
}
