package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestKeyOfAnUnknownTeam: a key for a team that has neither a file nor a model is made, and a
// remark names the teams there are.
func TestKeyOfAnUnknownTeam(t *testing.T) {
	s := start(t)
	out, errs, exit := s.thaw(t, "", "keys", "create", "--team", "mll")
	if exit != 0 || !strings.HasPrefix(out, "sk-thaw-") || strings.Count(out, "\n") != 1 {
		t.Fatalf("%d %q", exit, out)
	}
	for _, want := range []string{`the team "mll" has no file and no model yet; known are default, ml; thaw keys rm `, "did you mean ml?"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
	for _, team := range []string{"ml", "default", "mll"} { // the last has a key now
		if _, errs, exit := s.thaw(t, "", "keys", "create", "--team", team); exit != 0 || strings.Contains(errs, "known are") {
			t.Errorf("%s: %d %s", team, exit, errs)
		}
	}
}

// TestEventsOfAKindPrinted: thaw events --kind has printed its list when it asks which kinds
// there are; a failure of that is none of the verb's.
func TestEventsOfAKindPrinted(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("kind") == "" {
			http.Error(w, `{"error":{"message":"busy"}}`, http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"items":[{"kind":"ready","function":"default/m"}]}`)
	}))
	defer srv.Close()
	out, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir()}, "events", "--kind", "ready", "--server", srv.URL)
	if exit != 0 || !strings.Contains(out, "ready") || strings.Contains(errs, "error") {
		t.Errorf("exit %d, %s%s", exit, out, errs)
	}
}
