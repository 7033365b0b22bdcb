package openai

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// public is the whole allow-list of [Public].
var public = []string{
	"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
	"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/tokenize", "/detokenize",
	"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations",
}

// Public reports whether a client may reach an endpoint of an engine, with POST.
// It is the whole allow-list: engines have many more paths, and some of them
// load code, stop the engine or tell of other people's requests.
func Public(path string) bool { return slices.Contains(public, path) }

// UnknownPath is the answer to a path that is not served. It names the one that is meant, if
// there is one; what says who does not answer it.
func UnknownPath(what, path string) *Error {
	if strings.HasPrefix(path, "/v1/files") || strings.HasPrefix(path, "/v1/batches") {
		return New(UnknownEndpoint, "Files and batches are answered by `thaw serve`, and not on Kubernetes yet.")
	}
	below := func(folder string) bool { return len(path) > len(folder) && strings.HasPrefix(path, folder) }
	if below("/v1/responses/") || below("/v1/chat/completions/") {
		return New(UnknownEndpoint, "Answers are not kept here, so there is none to read, change, cancel or delete: send the whole conversation.")
	}
	text := "Unknown endpoint: " + what + " " + functions.Clip(path) + "."
	if nearest := nearestPath(path); nearest != "" && nearest != path {
		text += " Nearest: `" + nearest + "`."
	}
	return New(UnknownEndpoint, text)
}

// otherPaths has paths of Ollama's and TGI's own APIs, and those that clients ask to find out
// who is there, and what serves the same here.
var otherPaths = map[string]string{
	"/": "/v1/models", "/v1": "/v1/models", "/info": "/v1/models",
	"/api/tags": "/v1/models", "/api/ps": "/v1/models", "/api/show": "/v1/models", "/api/version": "/v1/models",
	"/api/chat": "/v1/chat/completions", "/api/generate": "/v1/completions", "/api/embed": "/v1/embeddings",
	"/generate": "/v1/completions", "/generate_stream": "/v1/completions", "/completion": "/v1/completions",
}

// nearestPath is the path that is meant by one of other spelling: with another prefix or none,
// with a slash too many, in capitals, or with a typing error; "" if there is none.
func nearestPath(path string) string {
	if len(path) > 256 || path == "" {
		return ""
	}
	path = strings.ToLower("/" + strings.Join(strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), "/"))
	if Public(path) {
		return path
	}
	if p := otherPaths[path]; p != "" {
		return p
	}
	best, ending, short := "", "", make([]string, 0, len(public)+1)
	for _, p := range append(public[:len(public):len(public)], "/v1/models") {
		s := strings.TrimPrefix(p, "/v1")
		short = append(short, s)
		for _, s := range []string{p, s} {
			if len(s) > len(ending) && strings.HasSuffix(path, s) {
				best, ending = p, s
			}
		}
	}
	if best != "" {
		return best
	}
	if nearest := functions.Nearest(strings.TrimPrefix(path, "/v1"), short, 1); len(nearest) > 0 {
		if p := "/v1" + nearest[0]; slices.Contains(public, p) || nearest[0] == "/models" {
			return p
		}
		return nearest[0]
	}
	return ""
}

// IsForm reports whether a public endpoint accepts multipart/form-data. All others accept JSON.
func IsForm(path string) bool {
	return path == "/v1/audio/transcriptions" || path == "/v1/audio/translations"
}

// splicedKeys are the keys that Splice may add to a body: model and stream_options.
const splicedKeys = 2

// PeekPublic checks the body of a request to a public endpoint by all bounds of [Peek] or
// [PeekMultipart], whichever the endpoint accepts. The body may name any model, or none, and
// have what Splice adds to one at those bounds.
func PeekPublic(path, contentType string, body []byte) (Envelope, error) {
	if IsForm(path) {
		return peekForm(contentType, body, true, maxParts+1)
	}
	return peekBody(body, true, MaxKeys+splicedKeys)
}

// InferPath is the public endpoint of a body that was sent to /infer: that of chats if the
// body has messages or cannot be read, else that of completions.
func InferPath(body []byte) string {
	p := peeker{b: body, unnamed: true, maxKeys: MaxKeys + splicedKeys}
	if p.run() == nil && !p.chat {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}
