package fake

import (
	"bytes"
	"strconv"
	"time"
)

// Script is the behaviour that a request demands of the fake engine.
type Script struct {
	Stream bool
	Usage  bool // stream_options.include_usage
	Tools  bool
	Tokens int           // chunks of a stream
	Delay  time.Duration // before each chunk, or before a plain answer
	Die    int           // SIGKILL of the engine after this many chunks; 0: never
	Stall  int           // silence after this many chunks until the client disconnects; 0: never
}

// Limits of a request's demands.
const (
	maxTokens    = 100_000
	maxDelay     = time.Minute
	defaultChunk = 64
)

// ParseScript parses the words after "@fake" and the few OpenAI fields that matter here. It
// does not decode the body: the engine must stay cheap. Unknown words and values out of
// bounds are ignored.
func ParseScript(body []byte) Script {
	a := Script{
		Stream: hasValue(body, `"stream"`, "true"),
		Usage:  hasValue(body, `"include_usage"`, "true"),
		Tools:  hasValue(body, `"tools"`, "["),
		Tokens: defaultChunk,
	}
	i := bytes.Index(body, []byte("@fake"))
	if i < 0 {
		return a
	}
	words := body[i+len("@fake"):]
	if end := bytes.IndexAny(words, "\"\\\n"); end >= 0 {
		words = words[:end]
	}
	for _, w := range bytes.Fields(words) {
		key, value, ok := bytes.Cut(w, []byte("="))
		if !ok {
			continue
		}
		switch string(key) {
		case "tokens":
			a.Tokens = count(value, a.Tokens)
		case "die":
			a.Die = count(value, a.Die)
		case "stall":
			a.Stall = count(value, a.Stall)
		case "delay":
			if d, err := time.ParseDuration(string(value)); err == nil && d >= 0 && d <= maxDelay {
				a.Delay = d
			}
		}
	}
	return a
}

func count(b []byte, otherwise int) int {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 || n > maxTokens {
		return otherwise
	}
	return n
}

// hasValue reports whether the body has the key with a value that starts with value.
func hasValue(body []byte, key, value string) bool {
	for rest := body; ; {
		i := bytes.Index(rest, []byte(key))
		if i < 0 {
			return false
		}
		rest = bytes.TrimLeft(rest[i+len(key):], " \t\r\n")
		if len(rest) > 0 && rest[0] == ':' && bytes.HasPrefix(bytes.TrimLeft(rest[1:], " \t\r\n"), []byte(value)) {
			return true
		}
	}
}
