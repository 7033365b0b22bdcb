package unknownpath_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/unknownpath"
)

// A server without batches says who has them.
func TestOfBatches(t *testing.T) {
	for _, path := range []string{"/v1/files", "/v1/files/x/content", "/v1/batches", "/v1/batches/x/cancel"} {
		if e := unknownpath.Error("this server does not answer", path); e.Code != openai.UnknownEndpoint ||
			!strings.Contains(e.Message, "not on Kubernetes yet") {
			t.Errorf("%s: %v", path, e)
		}
	}
}

// Answers are not kept: one that is asked for by its id says so.
func TestOfAnswers(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/responses/resp_1": true, "/v1/responses/resp_1/cancel": true, "/v1/chat/completions/chatcmpl-1": true,
		"/v1/chat/completions/": false, "/v1/responses/": false, "/v1/responsess": false,
	} {
		if e := unknownpath.Error("this server does not answer", path); e.Status != 404 || strings.Contains(e.Message, "not kept here") != want {
			t.Errorf("%s: %v", path, e)
		}
	}
}

// Endpoints of OpenAI's API that are not served are named with what to do instead.
func TestOfUnserved(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/moderations": "ask a model that moderates at /v1/chat/completions", "/v1/images/generations": "models answer with text",
		"/v1/threads/t/runs": "no conversation is kept here", "/v1/vector_stores": "no conversation is kept here", "/v1/fine_tuning/jobs": "as an adapter",
		"/v1/realtime": "true at /v1/chat/completions", "/v1/imagesque": "Unknown endpoint", "/v1/videos": "models answer with text",
	} {
		e := unknownpath.Error("this server does not answer", path)
		if e.Status != 404 || e.Code != openai.UnknownEndpoint || !strings.Contains(e.Message, want) {
			t.Errorf("%s: %v", path, e)
		}
	}
}

func TestNamesThePathMeant(t *testing.T) {
	for path, want := range map[string]string{
		"/chat/completions":                       "/v1/chat/completions",
		"/v1/chat/completion":                     "/v1/chat/completions",
		"/v1/chat/completions/":                   "/v1/chat/completions",
		"/v1//chat/completions":                   "/v1/chat/completions",
		"/v1/v1/chat/completions":                 "/v1/chat/completions",
		"/V1/Chat/Completions":                    "/v1/chat/completions",
		"/openai/deployments/f0/chat/completions": "/v1/chat/completions",
		"/v1/engines/f0/completions":              "/v1/completions",
		"/api/v1/rerank":                          "/v1/rerank",
		"/v3/rerank":                              "/v1/rerank",
		"/rerank/":                                "/rerank",
		"/models":                                 "/v1/models",
		"/embedings":                              "/v1/embeddings",
		"/v1/tokenize":                            "/tokenize",
		"/v1/moderations":                         "",
		"/slots":                                  "",
		"/v1/videos":                              "",
		"/v1/complete":                            "/v1/completions",
		"/pause":                                  "",
		"/v1/load_lora_adapter":                   "",
		"/v1/files":                               "",
		"/":                                       "/v1/models",
		"/v1":                                     "/v1/models",
		"/v1/":                                    "/v1/models",
		"/api/tags":                               "/v1/models",
		"/api/chat":                               "/v1/chat/completions",
		"/api/generate":                           "/v1/completions",
		"/api/embed":                              "/v1/embeddings",
		"/generate_stream":                        "/v1/completions",
		"/v1/chat":                                "/v1/chat/completions",
		"/v1chat/completions":                     "/v1/chat/completions",
		"/v1beta/models/m:generateContent":        "/v1/chat/completions",
		"/v1/api/tags":                            "/v1/models",
		"/inference":                              "/v1/audio/transcriptions",
		"/health/":                                "/healthz",
		"/v1/health":                              "/healthz",
		"/ping":                                   "/healthz",
		"":                                        "",
		"/" + strings.Repeat("a/", 4000):          "",
	} {
		e := unknownpath.Error("this server does not answer", path)
		if _, nearest, _ := strings.Cut(e.Message, " Nearest: "); e.Status != 404 || strings.Trim(nearest, "`.") != want {
			t.Errorf("%.100q: %s", path, e.Message)
		}
	}
}

func TestForClients(t *testing.T) {
	if e := unknownpath.Error("this server does not answer", "/v1/messages/batches").For("/v1/messages/batches"); !strings.HasPrefix(string(e.JSON), `{"type":"error"`) {
		t.Errorf("not Anthropic's form: %s", e.JSON)
	}
	for _, path := range []string{"/v1/threads", "/v2/models/m/infer", "/pooling"} {
		if e := unknownpath.Error("this server does not answer", path); !strings.Contains(e.Message, "/v1/chat/completions") {
			t.Errorf("%s: %s", path, e.Message)
		}
	}
}
