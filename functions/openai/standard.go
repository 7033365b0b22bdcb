package openai

import (
	"bytes"

	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// StandardJSON returns JSON of an engine with null for NaN and the infinities, which Python writes
// and clients cannot read; body itself where it has none.
func StandardJSON(body []byte) []byte {
	if !mayHaveNaN(body) {
		return body
	}
	return pythonjson.WithNulls(body)
}

// StandardData is [StandardJSON] of each line of data in whole events.
func StandardData(events []byte) []byte {
	if !mayHaveNaN(events) {
		return events
	}
	out := make([]byte, 0, len(events)+16)
	for line := range bytes.Lines(events) {
		if bytes.HasPrefix(line, []byte(dataPrefix)) {
			line = pythonjson.WithNulls(line)
		}
		out = append(out, line...)
	}
	return out
}

// mayHaveNaN reports whether the word of such a number occurs; it may stand in a string.
func mayHaveNaN(p []byte) bool {
	return bytes.Contains(p, []byte("NaN")) || bytes.Contains(p, []byte("Infinity"))
}
