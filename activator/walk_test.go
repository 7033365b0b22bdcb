package activator

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions/openai"
)

// enginePaths is every path a real vLLM 0.32.0 serves with everything switched
// on (runtime LoRA, sleep, developers' mode), as its /openapi.json lists them.
// platform/thaw compares the list with a real one where there is one.
func enginePaths(t *testing.T) []string {
	b, err := os.ReadFile("testdata/vllm-0.32.0-paths.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// TestOnlyAllowedPathsReachEngine walks all of it, with every method: what is
// not on the allow-list ends here.
func TestOnlyAllowedPathsReachEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("10.0.0.1:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 64, "10.0.0.1:1"))
		paths := enginePaths(t)
		if len(paths) < 40 {
			t.Fatalf("only %d paths: the list is not whole", len(paths))
		}
		passed := 0
		for _, path := range paths {
			concrete := strings.NewReplacer("{model_name}", "tiny", "{response_id}", "resp_1", "{adapter_name}", "x").Replace(path)
			for _, p := range []string{concrete, concrete + "/", "/" + concrete, "/v1" + concrete, "/v1/chat/completions/../.." + concrete, concrete + "%2f", concrete + ";x"} {
				for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
					before := len(e.requests())
					w.raw(method, p, `{"model":"tiny","prompt":"a","input":"a","messages":[{"role":"user","content":"a"}]}`)
					if len(e.requests()) == before {
						continue
					}
					passed++
					got := e.requests()[before].path
					if method != "POST" || !openai.Public(p) || got != p {
						t.Errorf("%s %s reached the engine as %s", method, p, got)
					}
				}
			}
		}
		if passed < 7 {
			t.Errorf("only %d passed: the walk tests nothing", passed)
		}
	})
}

// raw sends a request line as it is: no client cleans the path.
func (e *testEnv) raw(method, path, body string) {
	c, err := e.ln.dial(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c,
		"%s %s HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method,
		path, len(body), body); err != nil {
		return // refused before it was read
	}
	io.Copy(io.Discard, c)
}
