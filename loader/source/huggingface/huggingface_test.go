package huggingface_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/testkit/huggingfacetest"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const repo = "hf://" + huggingfacetest.Org + "/" + huggingfacetest.Repo

func TestConformance(t *testing.T) {
	for _, tc := range []struct{ name, below string }{{"a repository", ""}, {"a folder of one", "some folder/deep/"}} {
		t.Run(tc.name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
				srv := huggingfacetest.New(t)
				srv.Commit("main", map[string][]byte{"README.txt": []byte("hello")})
				if tc.below == "" {
					srv.Commit("main", map[string][]byte{"README.txt": nil})
				}
				s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
				t.Cleanup(s.Close)
				t.Cleanup(func() {
					if l := srv.Leaks(); len(l) > 0 {
						t.Errorf("the token went to the CDN: %v", l)
					}
				})
				return sourcetest.Location{
					Source: s, Location: strings.TrimSuffix(repo+"/"+tc.below, "/"), Nowhere: "hf://org/none", Kept: true,
					Put: func(t *testing.T, name string, body []byte) {
						srv.Commit("main", map[string][]byte{tc.below + name: append([]byte{}, body...)})
					},
					Delete: func(t *testing.T, name string) { srv.Commit("main", map[string][]byte{tc.below + name: nil}) },
				}
			})
		})
	}
}

func read(t *testing.T, s *huggingface.Source, f source.File) ([]byte, error) {
	t.Helper()
	r, err := s.Read(t.Context(), f, 0, f.Size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func TestRevisions(t *testing.T) {
	srv := huggingfacetest.New(t)
	big := bytes.Repeat([]byte("a"), 5000)
	first := srv.Commit("main", map[string][]byte{"config.json": []byte("1"), "model.safetensors": big})
	srv.Commit("refs/pr/7", map[string][]byte{"config.json": []byte("pr")})
	second := srv.Commit("main", map[string][]byte{"config.json": []byte("2")})
	s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
	defer s.Close()
	for location, want := range map[string]string{repo: "2", repo + "@main": "2", repo + "@" + first: "1", repo + "@refs/pr/7": "pr"} {
		plan, err := s.Plan(t.Context(), location, nil)
		if err != nil {
			t.Fatal(location, err)
		}
		got, err := read(t, s, plan.Files[0])
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", location, got, err)
		}
	}
	// What a commit did not touch is of the same version in the next.
	a, _ := s.Plan(t.Context(), repo+"@"+first, nil)
	b, _ := s.Plan(t.Context(), repo, nil)
	if !strings.Contains(b.Files[0].Ref, "|"+second+"|") {
		t.Errorf("%s is not of commit %s", b.Files[0].Ref, second)
	}
	if a.Files[1].Version != b.Files[1].Version || a.Files[0].Version == b.Files[0].Version || len(b.Files[1].SHA256) != 64 {
		t.Errorf("%+v and %+v", a, b)
	}
	// One file of weights.
	one, err := s.Plan(t.Context(), repo+"/model.safetensors", nil)
	if err != nil || len(one.Files) != 1 || one.Files[0].Name != "model.safetensors" {
		t.Errorf("%+v, %v", one, err)
	}
}

func TestSignaturesExpire(t *testing.T) {
	srv := huggingfacetest.New(t)
	big := bytes.Repeat([]byte("a"), 5000)
	srv.Commit("main", map[string][]byte{"model.safetensors": big})
	s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
	defer s.Close()
	plan, err := s.Plan(t.Context(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := read(t, s, plan.Files[0]); err != nil || !bytes.Equal(got, big) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if n := srv.Signed(); n != 1 {
		t.Errorf("%d signatures for three ranges", n)
	}
	srv.Expire()
	if got, err := read(t, s, plan.Files[0]); err != nil || !bytes.Equal(got, big) {
		t.Errorf("after the signature was over: %d bytes, %v", len(got), err)
	}
	if n := srv.Signed(); n != 2 {
		t.Errorf("%d signatures", n)
	}
}

// TestCDNHostGone: where a file's host cannot be reached any more, the hub is asked for another.
func TestCDNHostGone(t *testing.T) {
	srv := huggingfacetest.New(t)
	big := bytes.Repeat([]byte("a"), 5000)
	srv.Commit("main", map[string][]byte{"model.safetensors": big})
	var reads atomic.Int32
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads.Add(1)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(big))
	}))
	defer first.Close()
	srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/resolve/") {
			return false
		}
		http.Redirect(w, r, first.URL+"/model", http.StatusFound)
		return true
	})
	s := huggingface.New(huggingface.Options{Getenv: func(k string) string {
		if k == "THAW_SOURCE_HOSTS" {
			return "127.0.0.1"
		}
		return srv.Getenv(k)
	}})
	defer s.Close()
	plan, err := s.Plan(t.Context(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, s, plan.Files[0]); err != nil || !bytes.Equal(got, big) || reads.Load() != 1 {
		t.Fatalf("%d bytes, %v, %d reads of the first host", len(got), err, reads.Load())
	}
	srv.Fault(nil)
	first.Close()
	if _, err := read(t, s, plan.Files[0]); source.KindOf(err) != source.Unavailable {
		t.Errorf("of the host that is gone: %v", err)
	}
	if got, err := read(t, s, plan.Files[0]); err != nil || !bytes.Equal(got, big) {
		t.Errorf("of the next one: %d bytes, %v", len(got), err)
	}
}

// TestCDNRefuses: where a new address is refused as the one before, the reason is shown, and
// nothing that is an address or a signature.
func TestCDNRefuses(t *testing.T) {
	srv := huggingfacetest.New(t)
	srv.Commit("main", map[string][]byte{"model.safetensors": bytes.Repeat([]byte("a"), 5000)})
	for body, want := range map[string]string{
		"Auth failed: invalid range\n":                           "the server answered 403: Auth failed: invalid range",
		"no https://cdn.example/x?sig=CANARY here":               "the server answered 403",
		"CANARY" + strings.Repeat("0123456789", 10) + " expired": "the server answered 403",
	} {
		var reads atomic.Int32
		cdn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reads.Add(1)
			http.Error(w, body, http.StatusForbidden)
		}))
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/resolve/") {
				return false
			}
			http.Redirect(w, r, cdn.URL+"/model", http.StatusFound)
			return true
		})
		s := huggingface.New(huggingface.Options{Getenv: func(k string) string {
			if k == "THAW_SOURCE_HOSTS" {
				return "127.0.0.1"
			}
			return srv.Getenv(k)
		}})
		plan, err := s.Plan(t.Context(), repo, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = read(t, s, plan.Files[0])
		if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), strings.TrimPrefix(cdn.URL, "http://")+", where the hub keeps it: "+want+" (let that host through") || reads.Load() != 2 {
			t.Errorf("%v after %d reads, want %q", err, reads.Load(), want)
		}
		s.Close()
		cdn.Close()
	}
}

func TestTokens(t *testing.T) {
	srv := huggingfacetest.New(t)
	srv.Commit("main", map[string][]byte{"config.json": []byte("{}")})
	srv.Private()
	file := filepath.Join(t.TempDir(), "token")
	env := map[string]string{"HF_ENDPOINT": srv.URL, "HF_TOKEN_PATH": file}
	s := huggingface.New(huggingface.Options{Getenv: func(k string) string { return env[k] }})
	defer s.Close()
	_, err := s.Plan(t.Context(), repo, nil)
	if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), "gated") || !strings.Contains(err.Error(), "HF_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
	// A login while it runs.
	if err := os.WriteFile(file, []byte(huggingfacetest.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Plan(t.Context(), repo, nil); err != nil {
		t.Errorf("with a token: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	srv := huggingfacetest.New(t)
	srv.Commit("main", map[string][]byte{"config.json": []byte("{}"), "model.safetensors": make([]byte, 5000)})
	s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
	defer s.Close()
	for location, kind := range map[string]source.Kind{
		"hf://org/none": source.NotFound, repo + "@nope": source.NotFound, repo + "/no/such": source.NotFound,
		"hf://": source.BadSource, "hf://org": source.BadSource, "hf://../x": source.BadSource, "hf://a/b@../c": source.BadSource, "hf://a/b/../c": source.BadSource, "hf://a/b?x=CANARY": source.BadSource, "s3://a/b": source.BadSource, "hf://a/b@": source.BadSource,
	} {
		if _, err := s.Plan(t.Context(), location, nil); source.KindOf(err) != kind || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", location, err)
		}
	}
	plan, err := s.Plan(t.Context(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		h    http.HandlerFunc
		kind source.Kind
	}{
		"a redirect to the metadata": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		}, source.Refused},
		"round and round": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, source.Refused},
		"another commit": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Repo-Commit", "x")
			_, _ = w.Write(nil)
		}, source.Changed},
		"another size": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Linked-Size", "4999")
			http.Redirect(w, r, srv.CDN+"/x", http.StatusFound)
		}, source.Malformed},
		"busy":                 {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Retry-After", "1"); w.WriteHeader(429) }, source.Unavailable},
		"html":                 {func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("<html>")) }, source.Malformed},
		"gone":                 {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, source.Changed},
		"denied in the middle": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }, source.Denied},
	} {
		srv.Fault(func(w http.ResponseWriter, r *http.Request) bool { tc.h(w, r); return true })
		if _, err := read(t, s, plan.Files[1]); source.KindOf(err) != tc.kind || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A listing that leads the token away.
	srv.Fault(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/tree/") {
			return false
		}
		w.Header().Set("Link", `<`+srv.CDN+`/x>; rel="next"`)
		_, _ = w.Write([]byte("[]"))
		return true
	})
	if _, err := s.Plan(t.Context(), repo, nil); source.KindOf(err) != source.Malformed {
		t.Errorf("a page elsewhere: %v", err)
	}
	if l := srv.Leaks(); len(l) > 0 {
		t.Errorf("the token went to the CDN: %v", l)
	}
}
