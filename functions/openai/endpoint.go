package openai

import (
	"strings"
	"time"
)

// Endpoint is a path of an engine that a client may reach, with POST.
type Endpoint struct {
	Path    string
	Streams bool   // "stream": true makes the answer an event stream with an end mark
	Form    bool   // multipart/form-data; all others accept JSON
	Usage   bool   // supports stream_options.include_usage
	End     string // the event that ends a stream, where it is the same for all
	Noop    func(b []byte, model string, created time.Time) []byte
}

// Endpoints is the whole allow-list: engines have many more paths, and some of them load
// code, stop the engine or tell of other people's requests.
var Endpoints = [...]Endpoint{
	{Path: "/v1/chat/completions", Streams: true, Usage: true, End: Done, Noop: NoopChat},
	{Path: "/v1/completions", Streams: true, Usage: true, End: Done, Noop: NoopCompletion},
	{Path: "/v1/responses", Streams: true}, // events are numbered: comments only
	{Path: "/v1/messages", Streams: true, End: "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
	{Path: "/v1/messages/count_tokens"},
	{Path: "/v1/embeddings"},
	{Path: "/v1/rerank"}, {Path: "/v2/rerank"}, {Path: "/rerank"},
	{Path: "/v1/score"},
	{Path: "/tokenize"}, {Path: "/detokenize"},
	{Path: "/v1/audio/speech"},
	{Path: "/v1/audio/transcriptions", Form: true},
	{Path: "/v1/audio/translations", Form: true},
}

// Media reports whether the answers are sound, or a text of any form.
func (e *Endpoint) Media() bool { return strings.HasPrefix(e.Path, "/v1/audio/") }

// FindEndpoint returns the endpoint of a path; nil where a client may not reach it.
func FindEndpoint(path string) *Endpoint {
	for i := range Endpoints {
		if Endpoints[i].Path == path {
			return &Endpoints[i]
		}
	}
	return nil
}

// Public reports whether a client may reach a path of an engine.
func Public(path string) bool { return FindEndpoint(path) != nil }

// IsForm reports whether a public endpoint accepts multipart/form-data.
func IsForm(path string) bool {
	e := FindEndpoint(path)
	return e != nil && e.Form
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
