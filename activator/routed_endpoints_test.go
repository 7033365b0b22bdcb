package activator

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// endpointRequest is a request to an endpoint for a model, with its content type.
func endpointRequest(e openai.Endpoint, model string) (body, contentType string) {
	if e.Form {
		const bound = "part-of-a-form"
		return "--" + bound + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n--" + bound +
				"\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--" + bound + "--\r\n",
			"multipart/form-data; boundary=" + bound
	}
	rest := map[string]string{
		"/v1/completions": `"prompt":"hello"`, "/v1/responses": `"input":"hello"`, "/v1/embeddings": `"input":"hello"`,
		"/v1/messages":              `"max_tokens":5,"messages":[{"role":"user","content":"hello"}]`,
		"/v1/messages/count_tokens": `"messages":[{"role":"user","content":"hello"}]`,
		"/v1/rerank":                `"query":"a","documents":["b"]`,
		"/v2/rerank":                `"query":"a","documents":["b"]`, "/rerank": `"query":"a","documents":["b"]`,
		"/v1/score": `"text_1":"a","text_2":"b"`, "/tokenize": `"prompt":"a"`, "/detokenize": `"tokens":[1]`,
		"/v1/audio/speech": `"input":"hello","voice":"v"`, "/v1/chat/completions": `"messages":[{"role":"user","content":"hello"}]`,
	}[e.Path]
	if rest == "" {
		return "", ""
	}
	return `{"model":"` + model + `",` + rest + `}`, "application/json"
}

// TestRoutedEndpoints: each endpoint that a model has accepts the name of a Router and that of
// a Remote; the Remote gets its own name at the same path, and the caller the Remote's.
func TestRoutedEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		cloud := w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(r.URL.Path, "/audio/") {
				return replyComplete(c, `{"text":"heard"}`)
			}
			return replyComplete(c, `{"id":"c","model":"vendor-model","object":"any","choices":[],"usage":{"prompt_tokens":3,"total_tokens":3}}`)
		})
		w.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Model = "vendor-model" })
		local := w.engineAt("small:1", goodAnswer)
		w.publish(readyAt(testFunction("small"), 4, "small:1"))
		there, here := testRouter("cloud"), testRouter("small")
		here.Metadata.Name = "here"
		w.act.SetRouters([]*functions.Router{there, here}, nil)
		for _, e := range openai.Endpoints {
			for _, c := range []struct {
				model, target, sent string
				at                  *engine
			}{
				{"auto", "cloud", "vendor-model", cloud}, {"cloud", "", "vendor-model", cloud}, {"here", "small", "small", local},
			} {
				body, contentType := endpointRequest(e, c.model)
				if body == "" {
					t.Fatalf("there is no request for %s", e.Path)
				}
				before := len(c.at.requests())
				r := w.post(e.Path, body, "Content-Type", contentType)
				seen := c.at.requests()
				if r.status != 200 || len(seen) != before+1 {
					t.Errorf("%s of %s: %d %s, %d requests", e.Path, c.model, r.status, r.body, len(seen)-before)
					continue
				}
				if got := seen[before]; !strings.HasSuffix(got.path, e.Path) || !strings.Contains(got.body, c.sent) ||
					c.model != c.sent && strings.Contains(got.body, c.model+`"`) {
					t.Errorf("%s of %s was sent to %s: %s", e.Path, c.model, got.path, got.body)
				}
				if route := r.head.Get("thaw-route"); (c.target != "") != strings.Contains(route, "; target="+c.target+";") ||
					strings.Contains(r.body, "vendor-model") {
					t.Errorf("%s of %s: %q %s", e.Path, c.model, route, r.body)
				}
			}
		}
	})
}
