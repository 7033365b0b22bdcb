package openai

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// NewID returns a new request id: 128 random bits in hex, so that it cannot be guessed.
// It is the gateway's own; a client's id is kept beside it.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	var h [32]byte
	hex.Encode(h[:], b[:])
	return string(h[:])
}

// NewEngineID returns the id of a request as an engine gets it. It is new each time,
// because engines fail on a repeated id, and begins with the gateway's id of the
// request, unless that has another form than those of [NewID].
func NewEngineID(gateway string) string {
	if len(gateway) != 32 || strings.Trim(gateway, "0123456789abcdef") != "" {
		return NewID()
	}
	return gateway + "-" + NewID()[:16]
}
