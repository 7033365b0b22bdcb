package huggingface

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestIsHub: the token is sent to the hub's own addresses alone.
func TestIsHub(t *testing.T) {
	for endpoint, addresses := range map[string]map[string]bool{
		"https://hub.example": {
			"https://hub.example": true, "https://hub.example/": true, "https://hub.example/a": true, "https://hub.example?a": true, "https://hub.example.evil/a": false,
			"https://hub.example:8443/a": false, "http://hub.example/a": false, "https://u@hub.example/a": false, "https://u:p@hub.example/a": false, "https://hub.example@evil.example/a": false,
			"https://evil.example/https://hub.example/": false, "//hub.example/a": false,
		},
		"https://hub.example/sub": {
			"https://hub.example/sub/a": true, "https://hub.example/subway/a": false, "https://hub.example/a": false, "https://hub.example/sub.evil": false,
			"https://u@hub.example/sub/a": false,
		},
	} {
		s := withEnv(t, map[string]string{"HF_ENDPOINT": endpoint})
		for address, want := range addresses {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			if s.isHub(u) != want {
				t.Errorf("%s is of the hub %s: %v", address, endpoint, !want)
			}
		}
	}
}

// TestRedirects: which redirects of the hub are followed, how often, and which are refused. No
// connection stays in use.
func TestRedirects(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	plainAsked := 0
	plain := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { plainAsked++ }))
	var hubAsked []string
	hops, target := 0, ""
	fields := map[string]string{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hubAsked = append(hubAsked, fmt.Sprint(r.URL.Path, " ", r.Header.Get("Range"), " ", r.Header.Get("Authorization")))
		for name, value := range fields {
			w.Header().Set(name, value)
		}
		if hops--; hops >= 0 {
			w.Header().Set("Location", r.URL.Path)
		} else if target != "" {
			w.Header().Set("Location", target)
		}
		w.WriteHeader(http.StatusFound)
		fmt.Fprint(w, strings.Repeat("moved ", 100))
	}))
	conns := sourcetest.CountConnections(srv)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	const cdn = "https://cdn.example" // which is dialled nowhere
	s := New(Options{Roots: roots, Getenv: func(name string) string {
		return map[string]string{"HF_ENDPOINT": srv.URL, "HF_TOKEN": "t", "THAW_SOURCE_HOSTS": "127.0.0.0/8"}[name]
	}})
	t.Cleanup(s.Close)
	f := source.File{Name: "f", Size: 2, Ref: "o|r|" + commit + "|d/f"}
	read := func() string {
		hubAsked = nil
		body, err := s.Read(t.Context(), f, 0, 2)
		if err != nil {
			return string(source.KindOf(err)) + " " + err.Error()
		}
		body.Close()
		return "read"
	}
	for _, x := range []struct {
		name   string
		hops   int
		target string
		fields []string
		want   string
	}{
		{"to http", 0, plain.URL + "/f", nil, "not https"}, {"nowhere", 0, "", nil, "redirects to nowhere"},
		{"with a user", 0, strings.Replace(cdn, "https://", "https://u:p@", 1) + "/f", nil, "not https"},
		{"too often", maxHops, "", nil, "redirects too often"}, {"as often as may be", maxHops - 1, plain.URL, nil, "not https"},
		{"of another commit", 0, cdn + "/f", []string{"X-Repo-Commit", strings.Repeat("0", 40)}, "another commit"}, {"of another size", 0, cdn + "/f", []string{"X-Linked-Size", "3"}, "another size"},
	} {
		hops, target = x.hops, x.target
		clear(fields)
		for i := 0; i < len(x.fields); i += 2 {
			fields[x.fields[i]] = x.fields[i+1]
		}
		got := read()
		if !strings.Contains(got, x.want) {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		other := func(line string) bool { return line != "/o/r/resolve/"+commit+"/d/f bytes=0-1 Bearer t" }
		if n := min(x.hops+1, maxHops); len(hubAsked) != n || slices.ContainsFunc(hubAsked, other) {
			t.Errorf("%s: the hub was asked %q", x.name, hubAsked)
		}
	}
	if plainAsked != 0 {
		t.Errorf("%d requests without TLS", plainAsked)
	}
	conns.CheckClosed(t, s)
}

// TestMirrorRedirects: a mirror that leads to another hub is refused with the variable that
// names it.
func TestMirrorRedirects(t *testing.T) {
	srv := testkit.Serve(t, http.RedirectHandler("https://other.example/api?x=1", http.StatusPermanentRedirect))
	_, err := withEnv(t, map[string]string{"HF_ENDPOINT": srv.URL}).Plan(t.Context(), "hf://o/r", nil)
	if err == nil || !strings.Contains(err.Error(), "to https://other.example (set HF_ENDPOINT to that server, if it is meant)") {
		t.Error(err)
	}
}

// TestRenamedRepository: redirects within the hub, of a repository with a new name, are followed,
// and parts of paths are sent as they are written.
func TestRenamedRepository(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	var asked []string
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri := r.URL.RequestURI()
		if asked = append(asked, uri+" "+r.Header.Get("Authorization")); strings.Contains(uri, "/o/r/") {
			http.Redirect(w, r, strings.Replace(uri, "/o/r/", "/o/new/", 1), http.StatusTemporaryRedirect)
			return
		}
		switch {
		case strings.Contains(uri, "/revision/"):
			fmt.Fprintf(w, `{"sha":%q}`, commit)
		case strings.Contains(uri, "/tree/"):
			fmt.Fprint(w, `[{"type":"file","oid":"x","size":2,"path":"a%41/f?.json"}]`)
		default:
			w.Header().Set("Content-Range", "bytes 0-1/2")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "{}")
		}
	}))
	s := withEnv(t, map[string]string{"HF_ENDPOINT": srv.URL, "HF_TOKEN": "t"})
	plan, err := s.Plan(t.Context(), "hf://o/r@refs/pr/1/a%41", nil)
	if err != nil || len(plan.Files) != 1 || plan.Files[0].Name != "f?.json" {
		t.Fatalf("%+v, %v", plan, err)
	}
	body, err := s.Read(t.Context(), plan.Files[0], 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	var want []string
	for _, path := range []string{"/api/models/o/r/revision/refs%2Fpr%2F1", "/api/models/o/r/tree/" + commit + "/a%2541?recursive=true",
		"/o/r/resolve/" + commit + "/a%2541/f%3F.json"} {
		want = append(want, path+" Bearer t", strings.Replace(path, "/o/r/", "/o/new/", 1)+" Bearer t")
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestOffline: which values of HF_HUB_OFFLINE keep the hub from being asked, and which tokens are
// none.
func TestOffline(t *testing.T) {
	asked := false
	srv := testkit.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	for _, x := range []struct {
		offline, token string
		kind           source.Kind
	}{
		{"1", "", source.Denied}, {"true", "", source.Denied}, {"TRUE", "", source.Denied}, {"Yes", "", source.Denied}, {"on", "", source.Denied},
		{"0", "", source.Malformed}, {"", "", source.Malformed}, {"no", "", source.Malformed},
		{"", "a b", source.BadSource}, {"", "a\x7f", source.BadSource}, {"", "a\nb", source.BadSource}, {"", "a~!", source.Malformed},
	} {
		asked = false
		s := withEnv(t, map[string]string{"HF_ENDPOINT": srv.URL, "HF_HUB_OFFLINE": x.offline, "HF_TOKEN": x.token})
		if _, err := s.Plan(t.Context(), "hf://o/r", nil); source.KindOf(err) != x.kind || asked != (x.kind == source.Malformed) {
			t.Errorf("%+v: asked %v, %v", x, asked, err)
		}
	}
}
