package unknownpath_test

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
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

// TestOfDoubled: a client whose base URL holds the whole path is told where that ends.
func TestOfDoubled(t *testing.T) {
	for path, meant := range map[string]string{
		"/v1/chat/completions/chat/completions": "/v1/chat/completions", "/v1/chat/completions/v1/chat/completions": "/v1/chat/completions",
		"/v1/responses/responses": "/v1/responses", "/v1/embeddings/embeddings": "/v1/embeddings", "/v1/messages/v1/messages": "/v1/messages",
		"/v1/chat/completions/models": "/v1/models",
	} {
		if e := unknownpath.Error("this server does not answer", path); e.Status != 404 ||
			!strings.HasSuffix(e.Message, " Nearest: `"+meant+"`. Clients add the endpoint to their base URL, which ends with /v1.") {
			t.Errorf("%s: %v", path, e)
		}
	}
}

// TestOfUnserved: endpoints of OpenAI's API that are not served are named with what to do instead.
func TestOfUnserved(t *testing.T) {
	const kept = "no conversation is kept here: send all of it to /v1/chat/completions or /v1/responses"
	const output = "models answer with text, embeddings, ranks and speech"
	const tuned = "train elsewhere, and name the result as a model's source or as an adapter"
	for part, way := range map[string]string{
		"moderations": "ask a model that moderates at /v1/chat/completions", "images": output, "videos": output,
		"assistants": kept, "threads": kept, "conversations": kept, "vector_stores": kept, "fine_tuning": tuned, "fine-tunes": tuned,
		"uploads": "a file of a batch is sent whole to /v1/files", "realtime": "events come from \"stream\": true at /v1/chat/completions",
		"organization": "/metrics has what was used",
	} {
		for _, path := range []string{"/v1/" + part, "/v1/" + part + "/", "/v1/" + part + "/x/y"} {
			e := unknownpath.Error("this server does not answer", path)
			want := "Endpoints below /v1/" + part + " are not served: " + way + "."
			if e.Status != 404 || e.Code != openai.UnknownEndpoint || e.Message != want {
				t.Errorf("%s: %v", path, e)
			}
		}
		if e := unknownpath.Error("this server does not answer", "/v1/"+part+"que"); !strings.HasPrefix(e.Message, "Unknown endpoint") {
			t.Errorf("%sque: %v", part, e)
		}
	}
}

// TestNamesThePathMeant: the path that is meant is named, and no other where there is none.
func TestNamesThePathMeant(t *testing.T) {
	const models, chat, text, speech, health = "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/healthz"
	long := "/" + strings.Repeat("a", 256-len("/"+chat))
	paths := map[string]string{
		"/v1/chat/completions/": chat, "/v1//chat/completions": chat, "/v1/v1/chat/completions": chat, "/V1/Chat/Completions": chat,
		"/openai/deployments/f0/chat/completions": chat, "/v1/engines/f0/completions": text, "/api/v1/rerank": "/v1/rerank", "/v3/rerank": "/v1/rerank",
		"/rerank/": "/rerank", "/x/v2/rerank": "/v2/rerank", "/v1/tokenize": "/tokenize", "/v1/slots": "", "/slots": "", "/pause": "", "/v1/load_lora_adapter": "",
		"/v1beta/models/m:generateContent": chat, "/v1beta/models/m:streamGenerateContent": chat, "": "", "/" + strings.Repeat("a/", 4000): "",
		long + chat: chat, "/" + long + chat: "", // at the bound, and behind it
		"/v1/embeddings": "", // it is the one
		// typing errors, and other endings
		"/v1/scroe": "/v1/score", "/v1/csroe": "/v1/score", "/v1/toke": "", "/v1/tokenise": "/tokenize", "/v1/tokenisxx": "/tokenize", "/v1/complete": text,
		"/v1/chat/completion": chat, "/embedings": "/v1/embeddings", "/v1/embex": "", "/v1/tokez": "/tokenize", "/v1/embexxxngs": "/v1/embeddings", "/v1/embeddixx": "/v1/embeddings", "/v1/rereak": "/v1/rerank",
	}
	for _, e := range openai.Endpoints {
		if short := strings.TrimPrefix(e.Path, "/v1"); !openai.Public(short) {
			paths[short], paths["/x"+short] = e.Path, e.Path
		}
	}
	for meant, others := range map[string]string{
		models: "/ /v1 /v1/ /info /api/tags /api/ps /api/show /api/version /models", chat: "/api/chat /v1/chat /v1chat/completions /invocations",
		text: "/api/generate /generate /generate_stream /completion", "/v1/embeddings": "/api/embed", "/v1/audio/transcriptions": "/asr /inference",
		speech: "/tts", health: "/health /ping /status /v1/health /version", "/openapi.json": "/docs",
	} {
		for path := range strings.FieldsSeq(others) {
			paths[path], paths[strings.ToUpper(path)+"/"] = meant, meant
			if !strings.HasPrefix(path, "/v1") && len(path) > 1 && path != "/models" {
				paths["/v1"+path] = meant
			}
		}
	}
	for path, meant := range paths {
		want := "Unknown endpoint: this server does not answer " + functions.Clip(path) + "."
		if meant != "" {
			want += " Nearest: `" + meant + "`."
		} else {
			want += " Models answer at /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /v1/messages and the like;" +
				" GET /v1/models lists them."
		}
		if e := unknownpath.Error("this server does not answer", path); e.Status != 404 || e.Message != want {
			t.Errorf("%.300q: %s\nwant %s", path, e.Message, want)
		}
	}
}

func TestForClients(t *testing.T) {
	if e := unknownpath.Error("this server does not answer", "/v1/messages/batches").For("/v1/messages/batches"); !strings.HasPrefix(string(e.JSON), `{"type":"error"`) {
		t.Errorf("not Anthropic's form: %s", e.JSON)
	}
	for path, anthropic := range map[string]bool{"/messages": true, "/v1/mesages": true, "/x/v1/messages": true, "/v1/embedding": false} {
		if e := unknownpath.Error("this server does not answer", path); strings.HasPrefix(string(e.JSON), `{"type":"error"`) != anthropic {
			t.Errorf("%s: the form is not that of the endpoint that was meant: %s", path, e.JSON)
		}
	}
	for _, path := range []string{"/v1/threads", "/v2/models/m/infer", "/pooling"} {
		if e := unknownpath.Error("this server does not answer", path); !strings.Contains(e.Message, "/v1/chat/completions") {
			t.Errorf("%s: %s", path, e.Message)
		}
	}
}
