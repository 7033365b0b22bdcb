package openai

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID is a request's id: 128 random bits in hex, so that nobody can guess
// another's. It is the gateway's own; a client's is kept beside it.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	var h [32]byte
	hex.Encode(h[:], b[:])
	return string(h[:])
}
