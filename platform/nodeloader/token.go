package nodeloader

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// PeerToken derives the token between loaders from the control streams' token: it is sent
// over plain HTTP between nodes, so it permits reading blocks and nothing at the
// controller.
func PeerToken(token string) string {
	if token == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("thaw: blocks between nodes"))
	return hex.EncodeToString(h.Sum(nil))
}
