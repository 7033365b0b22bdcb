package nodeloader

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// PeerToken is the token between loaders, derived from the token of the control streams:
// it goes over plain HTTP between nodes, and gives access to blocks only, not to the
// controller.
func PeerToken(token string) string {
	if token == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("thaw: blocks between nodes"))
	return hex.EncodeToString(h.Sum(nil))
}
