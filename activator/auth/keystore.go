package auth

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
)

// Identity is the owner of a secret. KeyID is empty for the admin token.
type Identity struct {
	KeyID string
	Team  string
	Admin bool
}

// Key is one key as it may be shown, without its secret.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Team    string    `json:"team"`
	Admin   bool      `json:"admin,omitempty"`
	Created time.Time `json:"created"`
}

// ErrNoKey is returned for a key that does not exist.
var ErrNoKey = errors.New("no such key")

// Prefix begins every secret, so that scanners for leaked secrets know it.
const Prefix = "sk-thaw-"

type digest [sha256.Size]byte

// StoredKey is a key with the hash of its secret: in a file the HMAC, in hex, and where keys
// are kept elsewhere the SHA-256 of the secret, which is 256 random bits.
type StoredKey struct {
	Key
	Hash string `json:"hash"`
}

// digest decodes the hash.
func (k *StoredKey) digest() (d digest, err error) {
	h, err := hex.DecodeString(k.Hash)
	if err != nil || len(h) != len(d) {
		return d, fmt.Errorf("the hash of key %q is damaged", k.ID)
	}
	return digest(h), nil
}

type file struct {
	Keys []StoredKey `json:"keys"`
	// Required stays true after the first key: ending the last one opens nothing.
	Required bool `json:"required,omitempty"`
}

// KeyStore holds the API keys and maps a secret to its identity. Its methods may be
// called concurrently.
type KeyStore struct {
	replicated bool // kept elsewhere
	path       string
	macs       sync.Pool // of *mac
	mu         sync.Mutex
	keys       []StoredKey // under mu, in order of creation
	required   bool        // under mu: there has been a key
	lookup     atomic.Pointer[map[digest]Identity]
	admins     []digest // fixed secrets that are admin; under mu, and in lookup
}

// Open reads the keys at path, which need not exist yet, and the HMAC key in
// path with ".key" added, which is made if there is none and no keys either.
func Open(path string) (*KeyStore, error) {
	b := &KeyStore{path: path}
	data, err := os.ReadFile(path)
	var f file
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("keys: %w", err)
	default:
		if err := json.Unmarshal(data, &f); err != nil {
			return nil, damagedKeys(path, err)
		}
	}
	fresh := "remove it: the next start makes a new one"
	if len(f.Keys) > 0 {
		fresh = "without it no key can be checked: bring it back from a backup, or remove it and " + newKeys(path)
	}
	secret, err := secretFile(path+".key", len(f.Keys) == 0, fresh)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	b.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, []byte(secret))} }
	for _, k := range f.Keys {
		if _, err := k.digest(); err != nil {
			return nil, damagedKeys(path, err)
		}
	}
	b.keys, b.required = f.Keys, f.Required || len(f.Keys) > 0
	b.index()
	return b, nil
}

// damagedKeys is the error of a file of keys that is not as it was written.
func damagedKeys(path string, err error) error {
	return fmt.Errorf("keys: %s is damaged: %w (bring it back from a backup, or %s)", path, err, newKeys(path))
}

// newKeys is the way out without a backup. Without the file the server would want no key.
func newKeys(path string) string {
	return fmt.Sprintf(`write {"required": true} into %s and make new keys: thaw keys create --team TEAM`, path)
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

// index rebuilds the look-up; under mu.
func (s *KeyStore) index() {
	m := make(map[digest]Identity, len(s.keys)+len(s.admins))
	for _, d := range s.admins {
		m[d] = Identity{Team: functions.DefaultTeam, Admin: true}
	}
	for _, k := range s.keys {
		d, _ := k.digest() // checked before
		m[d] = Identity{KeyID: k.ID, Team: k.Team, Admin: k.Admin}
	}
	s.lookup.Store(&m)
}

func (s *KeyStore) hash(secret string) (d digest) {
	m := s.macs.Get().(*mac)
	m.Reset()
	m.buffer = append(m.buffer[:0], secret...)
	m.Write(m.buffer)
	m.buffer = m.Sum(m.buffer[:0])
	copy(d[:], m.buffer)
	s.macs.Put(m)
	return d
}

// mac hashes secrets; its buffer saves allocations.
type mac struct {
	hash.Hash
	buffer []byte
}

// Trust replaces the fixed secrets (the admin token) that are admins of the default team.
// They are no keys: Required and List leave them out.
func (s *KeyStore) Trust(secrets ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admins = nil
	for _, secret := range secrets {
		if secret != "" {
			s.admins = append(s.admins, s.hash(secret))
		}
	}
	s.index()
}

// Required reports whether requests need a key: whether any key exists or has existed. An
// operator who ends the last key does not open the server to all.
func (s *KeyStore) Required() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.required || len(s.keys) > 0
}

func (s *KeyStore) Lookup(secret string) (Identity, bool) {
	if secret == "" || len(secret) > 512 {
		return Identity{}, false
	}
	id, ok := (*s.lookup.Load())[s.hash(secret)]
	return id, ok
}

// Create makes a key and returns its secret, which is shown this once.
func (s *KeyStore) Create(team, name string, admin bool) (secret string, k Key, err error) {
	if !functions.IsLabel(team) {
		return "", Key{}, fmt.Errorf("team %.80q is no DNS label", team)
	}
	if len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", Key{}, errors.New("the name of a key is at most 128 printable characters")
	}
	secret = Prefix + randomText(32)
	d := s.hash(secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	id := hex.EncodeToString(randomBytes(6))
	k = Key{ID: id, Name: name, Team: team, Admin: admin, Created: time.Now().UTC().Truncate(time.Second)}
	keys := append(slices.Clone(s.keys), StoredKey{k, hex.EncodeToString(d[:])})
	if err := s.save(keys); err != nil {
		return "", Key{}, err
	}
	return secret, k, nil
}

// Delete ends a key at once. The error is ErrNoKey where there is none.
func (s *KeyStore) Delete(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.DeleteFunc(slices.Clone(s.keys), func(k StoredKey) bool {
		return subtle.ConstantTimeCompare([]byte(k.ID), []byte(id)) == 1
	})
	if len(keys) == len(s.keys) {
		return ErrNoKey
	}
	return s.save(keys)
}

// List is the keys of a team, or of all where team is "".
func (s *KeyStore) List(team string) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Key{}
	for _, k := range s.keys {
		if team == "" || k.Team == team {
			out = append(out, k.Key)
		}
	}
	return out
}

// save writes the file and then uses keys; mu must be held.
func (s *KeyStore) save(keys []StoredKey) error {
	if s.replicated {
		return ErrReplicated
	}
	data, err := json.MarshalIndent(file{Keys: keys, Required: true}, "", "  ") // there was one, or this is the first
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if err := durable.WriteFile(s.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	s.keys, s.required = keys, true
	s.index()
	return nil
}

// Bearer is the secret of an Authorization field, "" where it holds none.
func Bearer(authorization string) string {
	const scheme = "bearer "
	if len(authorization) <= len(scheme) || !strings.EqualFold(authorization[:len(scheme)], scheme) {
		return ""
	}
	return strings.TrimSpace(authorization[len(scheme):])
}

// Secret is the key that a request sends: as a bearer, or in a field of its own as the clients
// of Anthropic and Azure do. header returns the value of a field.
func Secret(header func(name string) string) string {
	return cmp.Or(Bearer(header("Authorization")), header("X-Api-Key"), header("Api-Key"))
}

// AdminToken reads dir/admin-token, or makes it.
func AdminToken(dir string) (string, error) {
	return secretFile(filepath.Join(dir, "admin-token"), true,
		"remove it: the next start makes a new one, which those who used the old one have to read")
}

// secretFile reads a one-line secret that only its owner may read, or makes one. fix is the
// way out where the file holds none.
func secretFile(path string, create bool, fix string) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		s := strings.TrimSpace(string(data))
		if len(s) < 32 {
			return "", fmt.Errorf("%s is damaged: it holds no secret (%s)", path, fix)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			if err := os.Chmod(path, 0o600); err != nil {
				return "", fmt.Errorf("%s can be read by others: %w", path, err)
			}
		}
		return s, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if !create {
		return "", fmt.Errorf("%s is missing (%s)", path, fix)
	}
	s := randomText(32)
	return s, durable.WriteFile(path, []byte(s+"\n"), 0o600)
}

func randomText(n int) string { return base64.RawURLEncoding.EncodeToString(randomBytes(n)) }

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails: the runtime ends the program instead
	return b
}
