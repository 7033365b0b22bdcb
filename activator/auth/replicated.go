package auth

import (
	"crypto/sha256"
	"errors"
)

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
func (s *KeyStore) Set(keys []StoredKey) error {
	var bad error
	next := make([]StoredKey, 0, len(keys))
	for _, k := range keys {
		if _, err := k.digest(); err != nil {
			bad = errors.Join(bad, err)
			continue
		}
		next = append(next, k)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = next
	s.index()
	return bad
}
