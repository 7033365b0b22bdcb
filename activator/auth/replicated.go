package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// ReplicatedKey is a key whose store is elsewhere.
type ReplicatedKey struct {
	Key
	Hash string // hex of the SHA-256 of the secret, which is 256 random bits
}

// ErrReplicated refuses to change keys whose store is elsewhere.
var ErrReplicated = errors.New("keys are kept elsewhere")

// NewReplicatedKeyStore makes a store without a file, filled by Set. Its secrets are random and
// long, so a plain hash hides them as well as a keyed one.
func NewReplicatedKeyStore() *KeyStore {
	b := &KeyStore{replicated: true}
	b.macs.New = func() any { return &mac{Hash: sha256.New()} }
	b.index()
	return b
}

// Set replaces all keys of a replicated store. Keys with a damaged hash are left out and
// reported in the error.
func (s *KeyStore) Set(keys []ReplicatedKey) error {
	var bad error
	next := make([]stored, 0, len(keys))
	for _, k := range keys {
		if h, err := hex.DecodeString(k.Hash); err != nil || len(h) != sha256.Size {
			bad = errors.Join(bad, fmt.Errorf("keys: the hash of key %q is damaged", k.ID))
			continue
		}
		next = append(next, stored(k))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = next
	s.index()
	return bad
}
