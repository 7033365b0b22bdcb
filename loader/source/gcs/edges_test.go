package gcs

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit"
)

func withEnv(t *testing.T, env map[string]string) *Source {
	t.Helper()
	s := New(Options{Getenv: func(name string) string { return env[name] }})
	t.Cleanup(s.Close)
	return s
}

// TestEndpoint: which server is asked.
func TestEndpoint(t *testing.T) {
	for named, want := range map[string]string{"": "https://storage.googleapis.com", "localhost:4443": "http://localhost:4443", "https://gcs.example/": "https://gcs.example",
		"ftp://x": "", "http://": "", "http:///": "", "http://u:p@x": "", "http://x?y=1": ""} {
		s := withEnv(t, map[string]string{"STORAGE_EMULATOR_HOST": named})
		if s.configError == nil && s.endpoint != want || (s.configError != nil) != (want == "") {
			t.Errorf("%q: %s, %v", named, s.endpoint, s.configError)
		}
		if want == "" {
			_, err := s.Plan(t.Context(), "gs://bucket/a", nil)
			_, rerr := s.Read(t.Context(), source.File{Ref: "bucket|a"}, 0, 1)
			werr := s.Write(t.Context(), "gs://bucket/a", "x", strings.NewReader("x"), 1)
			if source.KindOf(err) != source.BadSource || source.KindOf(rerr) != source.BadSource || source.KindOf(werr) != source.BadSource {
				t.Errorf("%q: %v; %v; %v", named, err, rerr, werr)
			}
		}
	}
}

// TestAnonymous: where nothing is shown, and whether Refresh looks again.
func TestAnonymous(t *testing.T) {
	for _, x := range []struct {
		env       map[string]string
		anonymous bool
	}{
		{map[string]string{"THAW_GCS_ANONYMOUS": "true"}, true}, {map[string]string{"THAW_GCS_ANONYMOUS": "TRUE"}, true}, {map[string]string{"THAW_GCS_ANONYMOUS": "1"}, true},
		{map[string]string{"THAW_GCS_ANONYMOUS": "false"}, false}, {nil, false}, {map[string]string{"STORAGE_EMULATOR_HOST": "x:1"}, true},
		{map[string]string{"STORAGE_EMULATOR_HOST": "x:1", "GOOGLE_APPLICATION_CREDENTIALS": "/x"}, false},
	} {
		s := withEnv(t, x.env)
		for _, k := range []*tokens{s.tokens, s.writes} {
			if k.anonymous != x.anonymous {
				t.Errorf("%v: %v", x.env, k.anonymous)
			}
			k.token, k.until = "old", time.Now().Add(time.Hour)
		}
		if s.Refresh(t.Context(), ""); s.tokens.token != "" || s.writes.token != "" || s.tokens.anonymous != x.anonymous {
			t.Errorf("%v after Refresh: %+v, %+v", x.env, s.tokens, s.writes)
		}
	}
	if s := withEnv(t, nil); s.tokens.scope != scopeRead || s.writes.scope != scopeWrite {
		t.Error(s.tokens.scope, s.writes.scope)
	}
}

// TestMetadataServer: a machine without metadata server, or with another server at its
// address, is anonymous until Refresh; one whose server fails is denied.
func TestMetadataServer(t *testing.T) {
	answer := func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w) }))
	host := strings.TrimPrefix(srv.URL, "http://")
	k := newTokens(func(name string) string { return map[string]string{"GCE_METADATA_HOST": host}[name] }, false, scopeRead)
	t.Cleanup(k.close)
	if token, err := k.get(t.Context()); token != "" || err != nil || !k.anonymous ||
		k.describe() != "no credentials: the metadata server: "+host+" answered 200, without Metadata-Flavor: Google" {
		t.Errorf("%q, %v, %+v", token, err, k)
	}
	for _, x := range []struct {
		bad  func(w http.ResponseWriter)
		want string
	}{
		{func(w http.ResponseWriter) { w.WriteHeader(500) }, " answered 500"},
		{func(w http.ResponseWriter) { fmt.Fprint(w, "{") }, " answered 200 without a token"},
		{func(w http.ResponseWriter) { fmt.Fprint(w, `{"expires_in":10}`) }, " answered 200 without a token"},
		{func(w http.ResponseWriter) { w.WriteHeader(500); fmt.Fprint(w, `{"access_token":"t","expires_in":10}`) }, " answered 500"},
		{func(w http.ResponseWriter) {
			http.Error(w, "Unable to generate access token; IAM returned 403 Forbidden: Permission 'iam.serviceAccounts.getAccessToken' "+
				"denied on resource (or it may not exist).\nSee https://cloud.google.com/kubernetes-engine/docs", http.StatusForbidden)
		}, " answered 403: Unable to generate access token; IAM returned 403 Forbidden: Permission 'iam.serviceAccounts.getAccessToken' " +
			"denied on resource (or it may not exist)"},
	} {
		answer = func(w http.ResponseWriter) { w.Header().Set("Metadata-Flavor", "Google"); x.bad(w) }
		k.reset()
		if token, err := k.get(t.Context()); token != "" || err == nil || k.anonymous || k.describe() != "the identity of this machine" ||
			!strings.HasSuffix(err.Error(), host+x.want) {
			t.Errorf("%q, %v, %+v", token, err, k)
		}
	}
	asked := 0
	answer = func(w http.ResponseWriter) {
		asked++
		w.Header().Set("Metadata-Flavor", "Google")
		fmt.Fprintf(w, `{"access_token":"t%d","expires_in":3600}`, asked)
	}
	for range 2 {
		if token, err := k.get(t.Context()); token != "t1" || err != nil {
			t.Errorf("%q, %v", token, err)
		}
	}
	k.until = time.Now()
	if token, err := k.get(t.Context()); token != "t2" || err != nil || asked != 2 {
		t.Errorf("%q, %v after its end", token, err)
	}
	srv.Close()
	k.reset()
	if token, err := k.get(t.Context()); token != "" || err != nil || !k.anonymous {
		t.Errorf("%q, %v without server", token, err)
	}
}

// TestCredentialsFile: where the file is looked for, and which is no credentials file.
func TestCredentialsFile(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	user := `{"type":"authorized_user","client_id":"c","client_secret":"s","refresh_token":"r"}`
	own := write("own.json", user)
	write("config/application_default_credentials.json", user)
	write("home/.config/gcloud/application_default_credentials.json", user)
	write("application_default_credentials.json", user) // of a folder that is not looked at
	write(".config/gcloud/application_default_credentials.json", user)
	t.Chdir(folder)
	const named, gcloud = "the credentials of GOOGLE_APPLICATION_CREDENTIALS", "gcloud's application default credentials"
	for _, x := range []struct {
		env   map[string]string
		found bool
		fails bool
		how   string
	}{
		{map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": own, "HOME": folder + "/home"}, true, false, named},
		{map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": write("marked.json", "\ufeff"+user)}, true, false, named},
		{map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": folder + "/none", "HOME": folder + "/home"}, false, true, named},
		{map[string]string{"CLOUDSDK_CONFIG": folder + "/config"}, true, false, gcloud},
		{map[string]string{"HOME": folder + "/home"}, true, false, gcloud},
		{map[string]string{"CLOUDSDK_CONFIG": folder + "/none", "HOME": folder + "/home"}, false, false, "no credentials"},
		{nil, false, false, "no credentials"},
		{map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": write("list.json", "[]")}, false, true, named},
		{map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": write("other.json", `{"type":"gdch_service_account"}`)}, false, true, named},
	} {
		k := newTokens(func(name string) string { return x.env[name] }, false, scopeRead)
		err := k.findCredentials()
		ofFile := x.found && strings.HasPrefix(k.describe(), x.how+" (\""+folder) &&
			strings.HasSuffix(k.describe(), "\", of type authorized_user)")
		if (k.file != nil) != x.found || (err != nil) != x.fails ||
			k.describe() != x.how && !ofFile {
			t.Errorf("%v: found %v, %v, %s", x.env, k.file != nil, err, k.describe())
		}
		k.close()
	}
}

// TestFileOf: an object of a listing as a file.
func TestFileOf(t *testing.T) {
	p, err := parse("gs://bucket/a")
	if err != nil {
		t.Fatal(err)
	}
	f, err := fileOf(p, object{Name: "a/x.bin", Size: "5", Generation: "7", MD5: "1B2M2Y8AsgTpgAmY7PhCfg==", CRC32C: "AAAAAA=="}, nil)
	if err != nil || f.Name != "a/x.bin" || f.Size != 5 || f.Version != "7" || len(f.CRC32C) != 4 || f.MD5 != nil {
		t.Errorf("%+v, %v", f, err)
	}
	for sum, want := range map[string]int{"": 16, "AAAA": 16, "!": 16} {
		if f, err = fileOf(p, object{Name: "a/x.bin", Size: "0", Generation: "7", MD5: "1B2M2Y8AsgTpgAmY7PhCfg==", CRC32C: sum},
			nil); err != nil || len(f.MD5) != want || f.CRC32C != nil {
			t.Errorf("%q: %+v, %v", sum, f, err)
		}
	}
	for _, o := range []object{{Name: "a/x", Generation: "7"}, {Name: "a/x", Size: "-1", Generation: "7"}, {Name: "a/x", Size: "5"}, {Name: "a/x", Size: "5", Generation: "7x"}} {
		if f, err := fileOf(p, o, nil); source.KindOf(err) != source.Malformed {
			t.Errorf("%+v: %+v, %v", o, f, err)
		}
	}
	if f, err := fileOf(p, object{Name: "a/sub/", Size: "x"}, nil); err != nil || f.Name != "a/sub/" || f.Size != 0 {
		t.Errorf("a folder: %+v, %v", f, err)
	}
	for size, fits := range map[int]bool{222: true, 223: false, 3: true, 2: false} {
		if _, err := parse("gs://" + strings.Repeat("b", size)); (err == nil) != fits {
			t.Errorf("a bucket of %d letters: %v", size, err)
		}
	}
}

// TestNoToken: without a token that was to be there, nothing is sent, and the error says how
// to give one.
func TestNoToken(t *testing.T) {
	asked := 0
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++ }))
	s := withEnv(t, map[string]string{"STORAGE_EMULATOR_HOST": srv.URL, "GOOGLE_APPLICATION_CREDENTIALS": "/none.json"})
	_, planned := s.Plan(t.Context(), "gs://bucket/a", nil)
	_, read := s.Read(t.Context(), source.File{Name: "x", Ref: "bucket|a/x", Version: "1"}, 0, 1)
	written := s.Write(t.Context(), "gs://bucket/a", "x", strings.NewReader("x"), 1)
	for what, err := range map[string]error{"plan": planned, "read": read, "write": written} {
		if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(),
			`with the credentials of GOOGLE_APPLICATION_CREDENTIALS: "/none.json" cannot be read: no such file or directory (set GOOGLE_`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if asked > 0 {
		t.Errorf("%d requests", asked)
	}
}
