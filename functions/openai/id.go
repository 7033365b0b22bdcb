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

const hexDigits = "0123456789abcdef"

// NewEngineID returns the id of a request as an engine gets it. It is new each time,
// because engines fail on a repeated id, and begins with the gateway's id of the
// request, unless that has another form than those of [NewID].
func NewEngineID(gateway string) string {
	if len(gateway) != 32 || strings.Trim(gateway, hexDigits) != "" {
		return NewID()
	}
	return gateway + "-" + NewID()[:16]
}

// ValidID reports whether a client's own request id is accepted.
func ValidID(s string) bool { return s != "" && len(s) <= 128 && strings.Trim(s, wordBytes) == "" }

// wordBytes are the bytes of an id or a salt.
const wordBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// ValidTrace reports whether s is a W3C traceparent of version 00.
func ValidTrace(s string) bool {
	return len(s) == 55 && s[:3] == "00-" && s[35] == '-' && s[52] == '-' &&
		strings.Count(s, "-") == 3 && strings.Trim(s, hexDigits+"-") == ""
}
