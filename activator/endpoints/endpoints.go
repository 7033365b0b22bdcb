package endpoints

import (
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Endpoint is one path that is proxied to an engine.
type Endpoint struct {
	Path    string
	Streams bool // "stream": true makes the answer an event stream with an end mark
	Form    bool // multipart/form-data
	Usage   bool // supports stream_options.include_usage
	Noop    func(b []byte, model string, created time.Time) []byte
}

// Find looks a path up in the allow-list. All others are refused: engines have
// many more paths, and some of them end the engine.
func Find(path string) *Endpoint {
	switch path {
	case "/v1/chat/completions":
		return &Chat
	case "/v1/completions":
		return &Completions
	case "/v1/responses":
		return &Responses
	case "/v1/messages":
		return &Messages
	}
	for i := range Plain {
		if Plain[i].Path == path {
			return &Plain[i]
		}
	}
	return nil
}

// The endpoints. Plain ones answer in one piece.
var (
	Chat        = Endpoint{Path: "/v1/chat/completions", Streams: true, Usage: true, Noop: openai.NoopChat}
	Completions = Endpoint{Path: "/v1/completions", Streams: true, Usage: true, Noop: openai.NoopCompletion}
	Responses   = Endpoint{Path: "/v1/responses", Streams: true} // events are numbered: comments only
	Messages    = Endpoint{Path: "/v1/messages", Streams: true}
	Plain       = [...]Endpoint{
		{Path: "/v1/embeddings"},
		{Path: "/v1/messages/count_tokens"},
		{Path: "/v1/rerank"}, {Path: "/v2/rerank"}, {Path: "/rerank"},
		{Path: "/v1/score"},
		{Path: "/tokenize"}, {Path: "/detokenize"},
		{Path: "/v1/audio/speech"},
		{Path: "/v1/audio/transcriptions", Form: true},
		{Path: "/v1/audio/translations", Form: true},
	}
)
