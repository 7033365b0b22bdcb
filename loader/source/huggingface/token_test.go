package huggingface

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestRefusedToken: the hub answers 401 to a token that it does not know, also for public
// repositories; the error names the token's place.
func TestRefusedToken(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Error-Message", "Invalid credentials in Authorization header")
		http.Error(w, "<html>Invalid username or password.</html>", http.StatusUnauthorized)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hf_old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HF_TOKEN": "hf_old"}, "refuses the token of HF_TOKEN: it answered 401: Invalid credentials in Authorization header (set HF_TOKEN to a valid token, or take"},
		{map[string]string{"HUGGING_FACE_HUB_TOKEN": "hf_old"}, "refuses the token of HUGGING_FACE_HUB_TOKEN: "},
		{map[string]string{"HF_TOKEN_PATH": file}, "refuses the token of the file " + file + ": "},
		{map[string]string{"HUGGINGFACE_TOKEN": "hf_old"}, "(check the name; if it is private HUGGINGFACE_TOKEN is set, and HF_TOKEN is read; set HF_TOKEN"},
		{map[string]string{"HF_TOKEN_PATH": "/none/t"}, `(check the name; if it is private HF_TOKEN_PATH names "/none/t", which gives no token; set HF_TOKEN`},
		{nil, "there is no such repository, or it is private (check the name; if it is private set HF_TOKEN"},
	} {
		c.env = merge(c.env, "HF_ENDPOINT", srv.URL)
		s := New(Options{Getenv: func(k string) string { return c.env[k] }})
		_, err := s.Plan(t.Context(), "hf://o/r", nil)
		if source.KindOf(err) != source.Denied || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hf_old") {
			t.Errorf("%v: %v", c.env, err)
		}
		s.Close()
	}
}

// merge returns a copy of env with one more variable.
func merge(env map[string]string, name, value string) map[string]string {
	out := map[string]string{name: value}
	for k, v := range env {
		out[k] = v
	}
	return out
}

// TestHubThatIsNotAsked: a token that no field of HTTP can hold, and HF_HUB_OFFLINE, end a plan
// before the hub is asked.
func TestHubThatIsNotAsked(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++ }))
	defer srv.Close()
	for _, c := range []struct {
		name, value string
		kind        source.Kind
		want        string
	}{
		{"HF_TOKEN", "hf_a\nhf_b", source.BadSource, "the token of HF_TOKEN holds a blank or a line end"},
		{"HUGGING_FACE_HUB_TOKEN", "Bearer hf_a", source.BadSource, "the token of HUGGING_FACE_HUB_TOKEN holds a blank"},
		{"HF_HUB_OFFLINE", "1", source.Denied, "HF_HUB_OFFLINE is set (unset it"},
		{"HF_HUB_OFFLINE", "True", source.Denied, "HF_HUB_OFFLINE is set"},
	} {
		env := merge(map[string]string{c.name: c.value}, "HF_ENDPOINT", srv.URL)
		s := New(Options{Getenv: func(k string) string { return env[k] }})
		_, err := s.Plan(t.Context(), "hf://o/r", nil)
		if source.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) || asked > 0 {
			t.Errorf("%s: asked %d times, %v", c.name, asked, err)
		}
		s.Close()
	}
	env := map[string]string{"HF_ENDPOINT": srv.URL, "HF_HUB_OFFLINE": "0"}
	s := New(Options{Getenv: func(k string) string { return env[k] }})
	defer s.Close()
	if _, err := s.Plan(t.Context(), "hf://o/r", nil); err == nil || asked != 1 || !strings.Contains(err.Error(), "check HF_ENDPOINT") {
		t.Errorf("HF_HUB_OFFLINE=0: asked %d times, %v", asked, err)
	}
}
