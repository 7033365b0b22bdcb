package nodeloader

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// PeerToken derives the token between loaders from the control streams' token: it is sent
// over plain HTTP between nodes, so it permits nothing at the controller. Its holder reads
// blocks, and sends them: see Trust in loader/p2p.
func PeerToken(token string) string {
	if token == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("thaw: blocks between nodes"))
	return hex.EncodeToString(h.Sum(nil))
}
