// Package unknownpath makes the error for a request to a path that is not served: it names the
// nearest served path, or says what to do instead; it is no HTTP handler.
package unknownpath

import (
	"cmp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Error is the answer to a path that is not served. It names the one that is meant, if
// there is one; what says who does not answer it.
func Error(what, path string) *openai.Error {
	if strings.HasPrefix(path, "/v1/files") || strings.HasPrefix(path, "/v1/batches") {
		return openai.New(openai.UnknownEndpoint, "Files and batches are answered by `thaw serve`, and not on Kubernetes yet.")
	}
	below := func(folder string) bool { return len(path) > len(folder) && strings.HasPrefix(path, folder) }
	nearest := nearestPath(path)
	doubled := nearest != "" && strings.HasSuffix(path, strings.TrimPrefix(nearest, "/v1")) &&
		slices.ContainsFunc(openai.Endpoints[:], func(e openai.Endpoint) bool { return below(e.Path + "/") })
	if !doubled && (below("/v1/responses/") || below("/v1/chat/completions/")) {
		return openai.New(openai.UnknownEndpoint,
			"Answers are not kept here, so there is none to read, change, cancel or delete: send the whole conversation.")
	}
	for part, way := range unserved {
		if rest, ok := strings.CutPrefix(path, "/v1/"+part); ok && (rest == "" || rest[0] == '/') {
			return openai.New(openai.UnknownEndpoint, "Endpoints below /v1/"+part+" are not served: "+way+".")
		}
	}
	text := "Unknown endpoint: " + what + " " + functions.Clip(path) + "."
	if nearest != "" && nearest != path {
		text += " Nearest: `" + nearest + "`."
		if doubled {
			text += " Clients add the endpoint to their base URL, which ends with /v1."
		}
	} else if strings.HasPrefix(path, "/api/v1") {
		text += " The paths of the API are at /openapi.json."
	} else {
		text += " Models answer at /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /v1/messages and the like;" +
			" GET /v1/models lists them."
	}
	if strings.HasPrefix(nearest, "/v1/messages") {
		path = nearest
	}
	return openai.New(openai.UnknownEndpoint, text).For(path)
}

// otherPaths has paths of Ollama's and TGI's own APIs, and those that clients ask to find out
// who is there, and what serves the same here.
var otherPaths = map[string]string{
	"/": "/v1/models", "/v1": "/v1/models", "/info": "/v1/models",
	"/api/tags": "/v1/models", "/api/ps": "/v1/models", "/api/show": "/v1/models", "/api/version": "/v1/models",
	"/api/chat": "/v1/chat/completions", "/api/generate": "/v1/completions", "/api/embed": "/v1/embeddings",
	"/generate": "/v1/completions", "/generate_stream": "/v1/completions", "/completion": "/v1/completions",
	"/v1/chat": "/v1/chat/completions", "/v1chat/completions": "/v1/chat/completions", "/invocations": "/v1/chat/completions",
	"/asr": "/v1/audio/transcriptions", "/inference": "/v1/audio/transcriptions", "/tts": "/v1/audio/speech",
	"/health": "/healthz", "/ping": "/healthz", "/status": "/healthz", "/v1/health": "/healthz", "/version": "/healthz", "/docs": "/openapi.json",
}

// unserved has endpoints of OpenAI's API that are not served, as they follow /v1/, with what to do
// instead.
var unserved = map[string]string{
	"moderations": "ask a model that moderates at /v1/chat/completions",
	"images":      "models answer with text, embeddings, ranks and speech", "videos": "models answer with text, embeddings, ranks and speech",
	"assistants": keptNothing, "threads": keptNothing, "conversations": keptNothing, "vector_stores": keptNothing,
	"fine_tuning": "train elsewhere, and name the result as a model's source or as an adapter", "fine-tunes": "train elsewhere, and name the result as a model's source or as an adapter",
	"uploads":  "a file of a batch is sent whole to /v1/files",
	"realtime": "events come from \"stream\": true at /v1/chat/completions", "organization": "/metrics has what was used",
}

const keptNothing = "no conversation is kept here: send all of it to /v1/chat/completions or /v1/responses"

// nearestPath is the path that is meant by one of other spelling: with another prefix or none,
// with a slash too many, in capitals, or with a typing error; "" if there is none.
func nearestPath(path string) string {
	if len(path) > 256 || path == "" {
		return ""
	}
	path = strings.ToLower("/" + strings.Join(strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), "/"))
	if openai.Public(path) {
		return path
	}
	if p := cmp.Or(otherPaths[path], otherPaths[strings.TrimPrefix(path, "/v1")]); p != "" {
		return p
	}
	if strings.Contains(path, ":generatecontent") || strings.Contains(path, ":streamgeneratecontent") { // Google's
		return "/v1/chat/completions"
	}
	paths := append(functions.ConvertAll(openai.Endpoints[:], func(e openai.Endpoint) string { return e.Path }), "/v1/models")
	best, ending, short := "", "", make([]string, 0, len(paths))
	for _, p := range paths {
		s := strings.TrimPrefix(p, "/v1")
		short = append(short, s)
		if len(s) > len(ending) && strings.HasSuffix(path, s) {
			best, ending = p, s
		}
	}
	if best != "" {
		return best
	}
	word := strings.TrimPrefix(path, "/v1")
	// A typing error, or another ending: other services have paths that only look alike.
	if nearest := functions.Nearest(word, short, 1); len(nearest) > 0 &&
		(functions.Distance(word, nearest[0], 2) <= 2 || len(word) > 5 && strings.HasPrefix(nearest[0], word[:5])) {
		if p := "/v1" + nearest[0]; slices.Contains(paths, p) {
			return p
		}
		return nearest[0]
	}
	return ""
}
