package web

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and a source that trusts it.
func serve(t *testing.T, h http.Handler) (*Source, string) {
	t.Helper()
	s, at, _ := serveCounted(t, h)
	return s, at
}

// serveCounted is serve, and returns what checks that no connection stays in use. It is called
// before the test's context ends, which ends them all.
func serveCounted(t *testing.T, h http.Handler) (s *Source, at string, check func()) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // callers that leave
	conns := sourcetest.CountConnections(srv)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	s = New(Options{Roots: roots, Getenv: func(k string) string {
		if k == httpsource.HostsVariable {
			return "127.0.0.1"
		}
		return ""
	}})
	t.Cleanup(s.Close)
	return s, srv.URL, func() { conns.CheckClosed(t, s) }
}

func put(t *testing.T, folder, name string, body []byte) {
	t.Helper()
	p := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, body, 0o644); err != nil {
		t.Fatal(err)
	}
}

// sums writes the folder's SHA256SUMS anew.
func sums(t *testing.T, folder string) {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(folder, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "SHA256SUMS" {
			return err
		}
		raw, err := os.ReadFile(p)
		sum := sha256.Sum256(raw)
		rel, _ := filepath.Rel(folder, p)
		fmt.Fprintf(&b, "%s  ./%s\n", hex.EncodeToString(sum[:]), filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	put(t, folder, "SHA256SUMS", []byte(b.String()))
}

// tagged gives every answer an ETag of the file's bytes.
func tagged(folder string) http.Handler {
	files := http.FileServer(http.Dir(folder))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if raw, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(r.URL.Path))); err == nil {
			sum := sha256.Sum256(raw)
			w.Header().Set("ETag", fmt.Sprintf("%q", hex.EncodeToString(sum[:8])))
		}
		files.ServeHTTP(w, r)
	})
}

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name  string
		serve func(folder string) http.Handler
		sums  bool
	}{
		{"a list and ETags", tagged, true},
		{"a page and ETags", tagged, false},
		{"a page and times", func(folder string) http.Handler { return http.FileServer(http.Dir(folder)) }, false},
		{"no ranges", func(folder string) http.Handler {
			h := tagged(folder)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Range")
				h.ServeHTTP(w, r)
			})
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
				folder := t.TempDir()
				if err := os.Mkdir(filepath.Join(folder, "model"), 0o755); err != nil {
					t.Fatal(err)
				}
				s, at := serve(t, tc.serve(folder))
				after := func(t *testing.T) {
					if tc.sums {
						sums(t, filepath.Join(folder, "model"))
					}
				}
				return sourcetest.Location{
					Source: s, Location: at + "/model", Nowhere: at + "/none",
					Put: func(t *testing.T, name string, body []byte) {
						put(t, filepath.Join(folder, "model"), name, body)
						after(t)
					},
					Delete: func(t *testing.T, name string) {
						if err := os.Remove(filepath.Join(folder, "model", name)); err != nil {
							t.Fatal(err)
						}
						after(t)
					},
				}
			})
		})
	}
}

// TestManyFiles: a folder has more files than are asked for their size at once, and no more
// than those are.
func TestManyFiles(t *testing.T) {
	folder := t.TempDir()
	for i := range 3 * maxHeads {
		put(t, folder, fmt.Sprintf("m/%d.json", i), []byte("{}"))
	}
	files := tagged(folder)
	var atOnce, most atomic.Int32
	full := make(chan struct{})
	s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			n := atOnce.Add(1)
			defer atOnce.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-full
		}
		files.ServeHTTP(w, r)
	}))
	top, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	type planned struct {
		plan source.Plan
		err  error
	}
	got := make(chan planned, 1)
	go func() {
		plan, err := s.Plan(t.Context(), at+"/m", nil)
		got <- planned{plan, err}
	}()
	testkit.Eventually(t, "files are asked for at once", func() bool { return most.Load() >= maxHeads })
	for range 3 * maxHeads { // time in which more might come
		if _, err := s.readSums(t.Context(), at, top); err != nil {
			t.Error(err)
		}
	}
	close(full)
	if p := <-got; p.err != nil || len(p.plan.Files) != 3*maxHeads || most.Load() != maxHeads {
		t.Errorf("%d files, %v; %d at once, want %d", len(p.plan.Files), p.err, most.Load(), maxHeads)
	}
}

// TestHiddenFolders: the page of a folder lists one whose name begins with a dot, and nothing
// below that is asked for.
func TestHiddenFolders(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"m/config.json", "m/sub/a.json", "m/.git/config.json", "m/.git/objects/b.json", "m/sub/.cache/c.json"} {
		put(t, folder, name, []byte("{}"))
	}
	files := tagged(folder)
	var mu sync.Mutex
	var asked []string
	s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		files.ServeHTTP(w, r)
	}))
	plan, err := s.Plan(t.Context(), at+"/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range plan.Files {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if want := []string{"config.json", "sub/a.json"}; !slices.Equal(names, want) {
		t.Errorf("planned %q, want %q", names, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(asked, "/m/sub/") || slices.ContainsFunc(asked, func(p string) bool { return strings.Contains(p, "/.") }) {
		t.Errorf("asked for %q", asked)
	}
}

func TestParseIndex(t *testing.T) {
	page := &url.URL{Scheme: "https", Host: "h", Path: "/m/"}
	for _, tc := range []struct{ name, kind, raw, want string }{
		{"nginx", "text/html", `<html><h1>Index of /m/</h1><a href="../">../</a><a href="config.json">config.json</a> 01-Jan <a href="a%20b%26c.txt">x</a><a href="sub/">sub/</a>`, "config.json a b&c.txt sub/"},
		{"apache", "text/html;charset=UTF-8", `<a href="?C=N;O=D">Name</a> <a href="/">Parent</a> <A HREF="model.safetensors">m</A> <a href='x.json'>`, "model.safetensors x.json"},
		{"absolute links", "text/html", `<a href="/m/config.json"></a><a href="https://h/m/y.json"></a><a href="https://evil/m/z.json"></a><a href="/other/x.json"></a><a href="sub/deep.json"></a>`, "config.json y.json"},
		{"escapes", "text/html", `<a href="..%2f..%2fx.json"></a><a href="&amp;.json">`, "&.json"},
		{"nginx json", "application/json", `[{"name":"config.json","type":"file","size":2},{"name":"sub","type":"directory"}]`, "config.json sub/"},
		{"caddy", "application/json; charset=utf-8", `[{"name":"config.json","is_dir":false},{"name":""},{"name":"/","is_dir":true},{"name":"sub/","is_dir":true},{"name":"../x"}]`, "config.json sub/"},
	} {
		got, err := parseIndex(tc.kind, []byte(tc.raw), page)
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, %v", tc.name, got, err)
		}
	}
	for kind, raw := range map[string]string{"application/json": `{"a":1}`, "text/plain": "config.json", "": ""} {
		if got, err := parseIndex(kind, []byte(raw), page); err == nil {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

// Whatever a page says, a name that comes out of it is one part below the
// folder or is refused by the rule for names.
func FuzzParseIndex(f *testing.F) {
	for _, s := range []string{`<a href="config.json">`, `<a href="..%2f..%2fx">`, `<a href='&#46;&#46;/x'>`, `[{"name":"x"}]`, `[{"name":"../x"}]`, `<a href="//h/m/x">`, `<a href="/m//x">`} {
		f.Add(s, true)
		f.Add(s, false)
	}
	page := &url.URL{Scheme: "https", Host: "h", Path: "/m/"}
	f.Fuzz(func(t *testing.T, raw string, asJSON bool) {
		kind := "text/html"
		if asJSON {
			kind = "application/json"
		}
		names, _ := parseIndex(kind, []byte(raw), page)
		for _, n := range names {
			if n = strings.TrimSuffix(n, "/"); strings.Contains(n, "/") {
				t.Errorf("%q", n)
			}
		}
	})
}

func TestParseSums(t *testing.T) {
	sum := strings.Repeat("Ab", 32)
	got, err := parseSums("# made by hand\n" + sum + "  config.json\r\n" + sum + " *./sub/a b.txt\n" + sum + "  SHA256SUMS\n\n")
	var names []string
	for _, f := range got {
		names = append(names, f.Name)
		if f.SHA256 != strings.ToLower(sum) {
			t.Errorf("digest %s", f.SHA256)
		}
	}
	if err != nil || !slices.Equal(names, []string{"config.json", "sub/a b.txt"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, bad := range []string{"", "\n", "config.json", "abc  config.json", sum, strings.Repeat("x", 64) + "  a"} {
		if got, err := parseSums(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name     string
		h        http.HandlerFunc
		kind     source.Kind
		wantText string
	}{
		{"no version", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/m/" {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, `<a href="config.json">`)
			} else if r.URL.Path == "/m/config.json" {
				w.Header().Set("Content-Length", "2")
			} else {
				http.NotFound(w, r)
			}
		}, source.Refused, "neither a strong ETag nor Last-Modified"},
		{"a page that lists nothing", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<p>Welcome")
		}, source.NotFound, "SHA256SUMS"},
		{"a login in its place", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/login" {
				http.Redirect(w, r, "/login", http.StatusFound)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<form>")
		}, source.NotFound, "/login, whose page lists no files (no login or key is sent"},
		{"a name that leaves", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("a", 64)+"  ../config.json\n")
		}, source.Refused, "one file below its folder"},
		{"away from https", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		}, source.Refused, "redirects from https to http://169.254.169.254 (name the https address"},
		{"round and round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, source.Refused, "redirects"},
		{"to the metadata", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://169.254.169.254/", http.StatusFound)
		}, source.Refused, "not a public address"},
		{"a page without an end", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			for range 5 {
				_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
			}
		}, source.Malformed, "longer than"},
		{"no", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, source.Denied, "403 (no login or key is sent to a web server"},
		{"no, with a reason", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			http.Error(w, `{"errors":[{"status":403,"message":"forbidden for anonymous"}]}`, http.StatusForbidden)
		}, source.Denied, "403: forbidden for anonymous (no login"},
		{"no file", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/m/" || r.URL.Path == "/" {
				w.Header().Set("Content-Type", "text/html")
				_, _ = io.WriteString(w, `<a href="config.json">config.json</a>`)
				return
			}
			if r.URL.Path != "/m/config.json" {
				http.NotFound(w, r)
				return
			}
			http.Error(w, "error code: 1020", http.StatusForbidden)
		}, source.Denied, "config.json: the server answered 403: error code: 1020 (files are read by ranges and without a login"},
		{"busy", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, source.Unavailable, "503"},
	} {
		s, at, check := serveCounted(t, tc.h)
		if _, err := s.Plan(t.Context(), at+"/m", nil); source.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.wantText) {
			t.Errorf("%s: %v", tc.name, err)
		}
		check()
	}
	s := New(Options{Getenv: func(string) string { return "" }})
	defer s.Close()
	for _, bad := range []string{"https://127.0.0.1/x", "https://localhost/x", "https://169.254.169.254/x", "https://[::1]/x", "http://example.org/x", "https://u:CANARY@example.org/x", "https://example.org/x?sig=CANARY", "https://2130706433/"} {
		_, err := s.Plan(t.Context(), bad, nil)
		if err == nil || strings.Contains(err.Error(), "CANARY") || source.KindOf(err) == source.Refused && !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A large file of a server without ranges is refused by name, not fetched once
// per block.
func TestNoRanges(t *testing.T) {
	s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Content-Length", fmt.Sprint(int64(maxWhole)+1))
		w.Header().Set("Last-Modified", time.Unix(0, 0).UTC().Format(http.TimeFormat))
	}))
	plan, err := s.Plan(t.Context(), at+"/m/x.gguf", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Read(t.Context(), plan.Files[0], 0, 10); source.KindOf(err) != source.Refused {
		if r != nil {
			r.Close()
		}
		t.Errorf("error %v", err)
	}
}

// A server without HEAD, or whose HEAD gives no length, is asked for one byte; a source may
// be one file of any kind.
func TestNoHead(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"config.json", "model.onnx", "model.gguf", "empty.txt"} {
		body := []byte("some bytes of " + name)
		if name == "empty.txt" {
			body = nil
		}
		put(t, folder, "m/"+name, body)
	}
	put(t, folder, "m/SHA256SUMS", nil)
	for what, answer := range map[string]func(w http.ResponseWriter){
		"405": func(w http.ResponseWriter) { w.WriteHeader(405) }, "501": func(w http.ResponseWriter) { w.WriteHeader(501) },
		"403": func(w http.ResponseWriter) { w.WriteHeader(403) }, "no length": func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
	} {
		for _, ranges := range []bool{true, false} {
			h := tagged(folder)
			s, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead {
					answer(w)
					return
				}
				if !ranges {
					r.Header.Del("Range")
				}
				if strings.HasSuffix(r.URL.Path, "SHA256SUMS") {
					http.NotFound(w, r)
					return
				}
				h.ServeHTTP(w, r)
			}))
			for location, want := range map[string]int{at + "/m": 3, at + "/m/model.onnx": 1, at + "/m/model.gguf": 1} {
				plan, err := s.Plan(t.Context(), location, nil)
				if err != nil {
					t.Errorf("%s, ranges %t: %v", what, ranges, err)
					continue
				}
				staged := 0
				for _, f := range plan.Files {
					if f.Version == "" {
						continue // not staged
					}
					staged++
					body, err := s.Read(t.Context(), f, 0, f.Size)
					if err != nil {
						t.Errorf("%s, ranges %t: %s: %v", what, ranges, f.Name, err)
						continue
					}
					raw, _ := io.ReadAll(body)
					body.Close()
					if text := "some bytes of " + f.Name; f.Name != "empty.txt" && string(raw) != text || int(f.Size) != len(raw) {
						t.Errorf("%s, ranges %t: %s has %d bytes: %q", what, ranges, f.Name, f.Size, raw)
					}
				}
				if staged != want {
					t.Errorf("%s, ranges %t: %s: %d files", what, ranges, location, staged)
				}
			}
			if _, err := s.Plan(t.Context(), at+"/m/gone.onnx", nil); source.KindOf(err) != source.NotFound {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}
