package openai

// Public reports whether a client may reach an endpoint of an engine, with POST.
// It is the whole allow-list: engines have many more paths, and some of them
// load code, stop the engine or tell of other people's requests.
func Public(path string) bool {
	switch path {
	case "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
		"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/tokenize", "/detokenize",
		"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations":
		return true
	}
	return false
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
