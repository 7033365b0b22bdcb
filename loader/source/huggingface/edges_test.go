package huggingface

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
)

// withEnv returns a source in an environment.
func withEnv(t *testing.T, env map[string]string) *Source {
	t.Helper()
	s := New(Options{Getenv: func(name string) string { return env[name] }})
	t.Cleanup(s.Close)
	return s
}

// TestTokenOf: where the token of a hub is read from, the first place first.
func TestTokenOf(t *testing.T) {
	folder := t.TempDir()
	at := func(name, token string) string {
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	path := at("own", " of-path\n")
	at("hf/token", "of-hf-home")
	at("xdg/huggingface/token", "of-xdg")
	at("home/.cache/huggingface/token", "of-home")
	places := []struct{ variable, value, token string }{
		{"HF_TOKEN", " of-variable ", "of-variable"},
		{"HUGGING_FACE_HUB_TOKEN", "of-old-variable", "of-old-variable"},
		{"HF_TOKEN_PATH", path, "of-path"},
		{"HF_HOME", filepath.Join(folder, "hf"), "of-hf-home"},
		{"XDG_CACHE_HOME", filepath.Join(folder, "xdg"), "of-xdg"},
		{"HOME", filepath.Join(folder, "home"), "of-home"},
	}
	for i := range places {
		env := map[string]string{}
		for _, p := range places[i:] {
			env[p.variable] = p.value
		}
		if got := withEnv(t, env).token(); got != places[i].token {
			t.Errorf("with %s: %q, want %q", places[i].variable, got, places[i].token)
		}
	}
	if got := withEnv(t, nil).token(); got != "" {
		t.Errorf("without a place: %q", got)
	}
	for size, want := range map[int]int{4096: 4096, 4097: 0} {
		if got := withEnv(t, map[string]string{"HF_TOKEN_PATH": at("large", strings.Repeat("x", size))}).token(); len(got) != want {
			t.Errorf("a file of %d bytes: %d", size, len(got))
		}
	}
}

// TestEndpoint: which hub is asked.
func TestEndpoint(t *testing.T) {
	for named, want := range map[string]string{"": "https://huggingface.co", "https://hub.example/": "https://hub.example", "http://hub:8080/x//": "http://hub:8080/x",
		"hub.example": "", "ftp://hub": "", "https://u:p@hub": "", "https://hub?x=1": "", "https://": ""} {
		s := withEnv(t, map[string]string{"HF_ENDPOINT": named})
		if s.configError == nil && s.endpoint != want || (s.configError != nil) != (want == "") {
			t.Errorf("%q: %s, %v", named, s.endpoint, s.configError)
		}
		if want == "" {
			if _, err := s.Plan(t.Context(), "hf://org/repo", nil); source.KindOf(err) != source.BadSource {
				t.Errorf("%q: %v", named, err)
			}
		}
	}
}

// TestNextPage: the next page is of the hub, or there is none.
func TestNextPage(t *testing.T) {
	s := withEnv(t, map[string]string{"HF_ENDPOINT": "https://hub.example/sub"})
	for header, want := range map[string]string{
		"": "", `<https://hub.example/sub/a?cursor=b>; rel="next"`: "https://hub.example/sub/a?cursor=b", `</sub/a>; rel="next"`: "https://hub.example/sub/a",
		`<a>;rel=next`: "https://hub.example/sub/a", `<https://hub.example/sub/a>; rel="prev"`: "", `<https://hub.example/other>; rel="next"`: "error",
		`<https://hub.example.evil/sub/a>; rel="next"`: "error", `<http://hub.example/sub/a>; rel="next"`: "error", `<https://u:p@hub.example/sub/a>; rel="next"`: "error",
	} {
		got, err := s.nextPage(repoLocation{}, header)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
}

// TestLocations: the bounds of each part of a location.
func TestLocations(t *testing.T) {
	long := strings.Repeat("a", 97)
	for in, fits := range map[string]bool{
		"hf://" + long[:96] + "/r": true, "hf://" + long + "/r": false, "hf://o/" + long[:96]: true, "hf://o/" + long: false, "hf://o/r@" + strings.Repeat("a", 200): true,
		"hf://o/r@" + strings.Repeat("a", 201): false, "hf://.o/r": false, "hf://o/r..x": false, "hf://o/r@a..b": false, "hf://o/r@.": false, "hf://o/r/a@b": false,
		"hf://o/r/a\\b": false, "hf://o/r/a\x7f": false, "hf://o/r/a\x1f": false, "hf://o/r/a b": true, "hf://o/r/./a": false, "hf://o/r#x": false, "hf://o/r@a+b_c-d.e": true,
	} {
		if _, err := parse(in); (err == nil) != fits {
			t.Errorf("%s: %v", in, err)
		}
	}
	for in, want := range map[string]repoLocation{
		"hf://o/r@refs/heads": {"o", "r", "refs", "heads"}, "hf://o/r@main/a/b": {"o", "r", "main", "a/b"}, "hf://o/r@refsx/a/b": {"o", "r", "refsx", "a/b"},
	} {
		if got, err := parse(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for rev, want := range map[string]bool{strings.Repeat("0a", 20): true, strings.Repeat("0A", 20): false, strings.Repeat("0g", 20): false, strings.Repeat("0", 39): false} {
		if isCommit(rev) != want {
			t.Error(rev)
		}
	}
}

// TestFileOf: an entry of a listing as a file.
func TestFileOf(t *testing.T) {
	const sum = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	type lfs = struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	}
	p := repoLocation{org: "o", repo: "r"}
	f, err := fileOf(p, "commit", "a", treeEntry{OID: "git", Size: 134, Path: "a/b.bin", LFS: &lfs{"sha256:" + strings.ToUpper(sum), 5000}})
	if err != nil || f.Name != "b.bin" || f.Size != 5000 || f.SHA256 != sum || f.Version == "git" || f.Ref != "o|r|commit|a/b.bin" {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = fileOf(p, "commit", "", treeEntry{OID: "git", Size: 2, Path: "a/b"})
	if err != nil || f.Name != "a/b" || f.Size != 2 || f.SHA256 != "" || f.Version != "git" {
		t.Errorf("%+v, %v", f, err)
	}
	for _, e := range []treeEntry{{Path: "a/b"}, {OID: "x", Path: "ab"}, {OID: "x", Path: "b/a"}, {OID: "x", Path: "a/b", LFS: &lfs{sum[1:], 1}}, {OID: "x", Path: "a/b", LFS: &lfs{"g" + sum[1:], 1}}} {
		if f, err := fileOf(p, "commit", "a", e); source.KindOf(err) != source.Malformed {
			t.Errorf("%+v: %+v, %v", e, f, err)
		}
	}
}

// TestAddresses: an address of the CDN is kept for ten minutes, until Refresh, and no more of
// them than a repository has files.
func TestAddresses(t *testing.T) {
	s := withEnv(t, nil)
	s.storeAddress("a", "https://a")
	left := time.Until(s.cdn["a"].until)
	if s.knownAddress("a") != "https://a" || s.knownAddress("b") != "" || left > 10*time.Minute || left < 9*time.Minute {
		t.Errorf("%v, %v", s.cdn, left)
	}
	s.cdn["a"] = cdnAddress{"https://a", time.Now()}
	if s.knownAddress("a") != "" {
		t.Error("an address that has ended")
	}
	s.storeAddress("a", "https://a")
	s.dropAddress("a")
	if s.knownAddress("a") != "" {
		t.Error("an address that was dropped")
	}
	s.storeAddress("a", "https://a")
	if err := s.Refresh(t.Context(), ""); err != nil || s.knownAddress("a") != "" {
		t.Error("after Refresh", err)
	}
	for i := range maxFiles + 1 {
		s.storeAddress(fmt.Sprint(i), "x")
	}
	if len(s.cdn) != maxFiles+1 {
		t.Error(len(s.cdn))
	}
	if s.storeAddress("last", "x"); len(s.cdn) != 1 || s.knownAddress("last") != "x" {
		t.Error(len(s.cdn))
	}
}

// TestExpiredAddress: where the CDN refuses an address that was in use, the hub is asked once
// for another; any other refusal is the answer.
func TestExpiredAddress(t *testing.T) {
	for status, again := range map[int]bool{400: true, 401: true, 403: true, 404: true, 410: true, 405: false, 412: false, 429: false, 500: false, 503: false} {
		var refuses atomic.Bool
		var resolved, hops atomic.Int32
		mux := http.NewServeMux()
		srv := testkit.Serve(t, mux)
		elsewhere := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refuses.Load() && !strings.HasSuffix(r.URL.Path, "/2") {
				w.WriteHeader(status)
				return
			}
			w.Header().Set("Content-Range", "bytes 0-9/10")
			w.WriteHeader(206)
			fmt.Fprint(w, "0123456789")
		}))
		mux.HandleFunc("/o/r/resolve/", func(w http.ResponseWriter, r *http.Request) {
			if n := hops.Add(1); n%4 != 0 { // within the hub
				http.Redirect(w, r, r.URL.Path, http.StatusFound)
				return
			}
			http.Redirect(w, r, fmt.Sprint(elsewhere.URL, "/", resolved.Add(1)), http.StatusFound)
		})
		s := withEnv(t, map[string]string{"HF_ENDPOINT": srv.URL, "THAW_SOURCE_HOSTS": strings.TrimPrefix(elsewhere.URL, "http://")})
		f := source.File{Name: "f", Size: 10, Ref: "o|r|" + strings.Repeat("a", 40) + "|f"}
		read := func() error {
			body, err := s.Read(t.Context(), f, 0, 10)
			if err == nil {
				body.Close()
			}
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		until := s.cdn[f.Ref].until
		if err := read(); err != nil || resolved.Load() != 1 || s.cdn[f.Ref].until != until || until.IsZero() {
			t.Errorf("%v, resolved %d times; a signed address is used until %v, then %v", err, resolved.Load(), until, s.cdn[f.Ref].until)
		}
		refuses.Store(true)
		if err := read(); (err == nil) != again || again != (resolved.Load() == 2) {
			t.Errorf("%d: %v, resolved %d times", status, err, resolved.Load())
		}
	}
	if _, err := withEnv(t, nil).Read(t.Context(), source.File{Name: "f", Ref: "a|b"}, 0, 1); source.KindOf(err) != source.BadSource {
		t.Error(err)
	}
}

// TestBoundsOfTrees: pages and files of a listing are read to their bounds and no further; what
// is no file is none.
func TestBoundsOfTrees(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	sha, location := commit, "hf://org/repo@"+commit
	plan := func(pages, files int) (int, error) {
		srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/revision/") {
				fmt.Fprintf(w, `{"sha":%q}`, sha)
				return
			}
			page, _ := strconv.Atoi(r.URL.Query().Get("page"))
			if page+1 < pages {
				w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?page=%d>; rel="next"`, r.Host, r.URL.Path, page+1))
			}
			entries := []string{`{"type":"directory","oid":"1","path":"d"}`, `{"type":"other","oid":"1","path":"x.json"}`}
			if page == 0 {
				for i := range files {
					entries = append(entries, fmt.Sprintf(`{"type":"file","oid":"1","size":1,"path":"%d.json"}`, i))
				}
			}
			fmt.Fprint(w, "["+strings.Join(entries, ",")+"]")
		}))
		got, err := withEnv(t, map[string]string{"HF_ENDPOINT": srv.URL}).Plan(t.Context(), location, nil)
		return len(got.Files), err
	}
	for _, x := range []struct {
		pages, files int
		want         source.Kind
	}{
		{maxPages, 1, ""}, {maxPages + 1, 1, source.Malformed}, {1, maxFiles, ""}, {1, maxFiles + 1, source.Refused}, {2, 0, source.NotFound},
	} {
		got, err := plan(x.pages, x.files)
		if source.KindOf(err) != x.want || x.want == "" && (err != nil || got != x.files) {
			t.Errorf("%d pages, %d files: %d, %v", x.pages, x.files, got, err)
		}
	}
	location = "hf://org/repo"
	for _, sha = range []string{commit, "main", "", commit[1:], strings.ToUpper(strings.Repeat("a", 40))} {
		want := map[bool]source.Kind{true: "", false: source.Malformed}[sha == commit]
		if _, err := plan(1, 1); source.KindOf(err) != want {
			t.Errorf("a revision that is %q: %v", sha, err)
		}
	}
}
