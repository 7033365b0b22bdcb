package huggingface

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// TestRecordOfRefusals: what is made of each status and code of a hub, with a token and without,
// and of answers that are not the hub's own.
func TestRecordOfRefusals(t *testing.T) {
	codes := []string{"", "GatedRepo", "DisabledRepo", "RevisionNotFound", "EntryNotFound", "RepoNotFound", "Other"}
	var out strings.Builder
	for _, env := range []map[string]string{nil, {"HF_TOKEN": "t"}, {"HF_ENDPOINT": "https://hub.example"}} {
		s := withEnv(t, env)
		for _, body := range []struct{ media, text string }{{"text/html", "<html>"}, {"application/json", `{"error":"words of the hub"}`}} {
			for _, code := range codes {
				before := ""
				for _, status := range []int{302, 400, 401, 403, 404, 407, 410, 412, 416, 429, 500, 503} {
					r := &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body.text)), Header: http.Header{
						"Content-Type": {body.media}, "Location": {"https://elsewhere.example/x"}, "X-Error-Code": {code}, "Retry-After": {"7"}}}
					line := sourcetest.Describe(s.responseError(r, repoLocation{org: "o", repo: "r", rev: "v1"}, "f", s.token()))
					if line = strings.ReplaceAll(line, fmt.Sprint(status), "STATUS"); line != before {
						fmt.Fprintf(&out, "%v %s %q %d: %s\n", env, body.media, code, status, line)
					}
					before = line
				}
			}
		}
	}
	sourcetest.Compare(t, "refusals.txt", out.String())
}

// TestRecordOfLocations: what is read from each location, whole or with a part that is not one.
func TestRecordOfLocations(t *testing.T) {
	long := strings.Repeat
	parts := []string{"", ".", "..", "a", "A.b_c-9", "-a", "_a", "a..b", "a b", "\u00fc", "a\x00", "a\x1f", "a\x7f", `a\b`, "a@b", "a?b", "a#b", "a:b", long("a", 96), long("a", 97),
		long("a", 200), long("a", 201), "main", "refs", "refs/pr/1", "refs/pr", "v1+2", "v/1"}
	var out strings.Builder
	for _, form := range []string{"hf://%s", "hf://%s/r", "hf://o/%s", "hf://o/r@%s", "hf://o/r@%s/x", "hf://o/r/%s", "hf://o/r/x/%s/y.gguf", "hf:///%s/r//", "s3://o/r%s"} {
		for _, part := range parts {
			p, err := parse(fmt.Sprintf(form, part))
			if err != nil {
				fmt.Fprintf(&out, "%s %.30q: %s\n", form, part, strings.ReplaceAll(sourcetest.Describe(err), fmt.Sprintf(form, part), "IT"))
			} else {
				fmt.Fprintf(&out, "%s %.30q: %q %q %q %q\n", form, part, p.org, p.repo, p.rev, p.sub)
			}
		}
	}
	sourcetest.Compare(t, "locations.txt", out.String())
}
