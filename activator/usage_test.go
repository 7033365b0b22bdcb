package activator

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/rude"
)

// limitTokens lets the default team use n tokens a minute.
func (w *testEnv) limitTokens(n int) {
	w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{TokensPerMinute: n}}}})
}

// TestUsageOfPlainAnswers: a plain answer is charged wherever its usage stands, however
// large it is and whatever it is called.
func TestUsageOfPlainAnswers(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":2}`
	large := `"x":"` + strings.Repeat("y", 2<<20) + `"`
	for name, answer := range map[string]rude.Answer{
		"before the choices":        rude.Plain(200, "application/json", `{`+usage+`,"choices":[`+strings.Repeat("0,", 3<<10)+`0]}`),
		"before a large field":      rude.Plain(200, "application/json", `{`+usage+`,`+large+`}`),
		"behind a large field":      rude.Chunked(200, "application/json", true, `{`+large, `,`+usage+`}`),
		"without a type":            rude.Plain(200, "", `{`+usage+`,"choices":[]}`),
		"without a type, in chunks": rude.Chunked(200, "", true, `{"usage":{"prompt_to`, `kens":3,"completion_tokens":2}}`),
		"called text":               rude.Chunked(200, "text/plain", true, `{`+usage, `}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return answer.Play(c) })
				w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
				w.limitTokens(12)
				for _, want := range []string{"12", "7"} {
					if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 || r.err != nil || r.head.Get("x-ratelimit-remaining-tokens") != want {
						t.Fatalf("%d %v, want %s left: %v", r.status, r.err, want, r.head)
					}
				}
			})
		})
	}
}
