package openai

import (
	"crypto/rand"
	"encoding/hex"
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
