package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// acceptedNotes are warnings of httplint about answers to POST that are right, with the reason.
var acceptedNotes = map[string]string{
	"doesn't have a validator":                  "answers to POST are not stored, whatever their fields say",
	"assign their own freshness":                "likewise",
	"The server didn't understand the request.": "that is what 400 says",
}

// TestHTTPLint: REDbot, which repeats each GET with conditions, ranges and codings, and its
// httplint, which reads answers to POST, have no warning about HTTP/1.1, but for accepted ones.
func TestHTTPLint(t *testing.T) {
	where := os.Getenv("THAW_PYTHON_SUITES")
	if where == "" {
		testkit.Missing(t, "THAW_PYTHON_SUITES", `is not set: eval "$(.ci/components)" sets it`)
	}
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "resources: {memory: 64Mi}\n")})
	met := map[string]bool{}
	check := func(what, note string) {
		for words := range acceptedNotes {
			if strings.Contains(note, words) {
				met[words] = true
				return
			}
		}
		t.Errorf("%s: %s", what, note)
	}
	page, script := p.do("GET", "/ui/", "").body, regexp.MustCompile(`src="([^"]+\.js)"`)
	found := script.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("no script in %s", page)
	}
	asset := found[1]
	if !strings.HasPrefix(asset, "/") {
		asset = "/ui/" + asset
	}
	var over sync.WaitGroup
	for _, path := range []string{"/v1/models", "/v1/models/tiny", "/v1/models/none", "/v1/nothing", "/v1/files", "/readyz", "/livez", "/healthz",
		"/metrics", "/api/v1/functions", "/api/v1/none", "/ui", "/ui/", "/ui/none", asset, "/"} {
		over.Go(func() {
			for _, note := range redbotNotes(t, where, p.url+path) {
				t.Errorf("%s: %s", path, note)
			}
		})
	}
	over.Wait()
	for what, body := range map[string]string{
		"a plain answer":   `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`,
		"a stream":         `{"model":"tiny","max_tokens":4,"stream":true,"messages":[{"role":"user","content":"hi"}]}`,
		"an unknown model": `{"model":"none","messages":[]}`,
		"broken JSON":      `{`,
	} {
		cmd := pythonProgram(t, where, "httplint", "-n")
		cmd.Stdin = strings.NewReader(p.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)))
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("[GOOD]")) {
			t.Fatalf("%s: %v\n%s", what, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "[WARN]") || strings.Contains(line, "[BAD]") && !strings.Contains(line, "clock") { // it is read later
				check(what, line)
			}
		}
	}
	for words, why := range acceptedNotes {
		if !met[words] {
			t.Errorf("no note has %q any more (%s)", words, why)
		}
	}
}

// pythonProgram is a program that pip has installed in a folder, which was moved since: the
// program names an interpreter of the former one.
func pythonProgram(t *testing.T, folder, name string, args ...string) *exec.Cmd {
	bin := filepath.Join(folder, "bin")
	return exec.CommandContext(t.Context(), filepath.Join(bin, "python"), append([]string{filepath.Join(bin, name)}, args...)...)
}

// redbotNotes are REDbot's warnings about the resource at url.
func redbotNotes(t *testing.T, folder, url string) (warnings []string) {
	out, err := pythonProgram(t, folder, "redbot", "-o", "har", url).Output()
	var har struct {
		Log struct {
			Entries []struct {
				Response struct{ Status int }
				Notes    []struct{ Level, Summary string } `json:"_red_messages"`
			}
		}
	}
	if err == nil {
		err = json.Unmarshal(out, &har)
	}
	if err != nil || len(har.Log.Entries) == 0 || har.Log.Entries[0].Response.Status == 0 || len(har.Log.Entries[0].Notes) == 0 {
		t.Errorf("%s: %v\n%s", url, err, out)
		return nil
	}
	for _, e := range har.Log.Entries {
		for _, n := range e.Notes {
			if n.Level == "WARN" || n.Level == "BAD" {
				warnings = append(warnings, fmt.Sprintf("%d: %s", e.Response.Status, n.Summary))
			}
		}
	}
	return warnings
}
