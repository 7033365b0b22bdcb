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
