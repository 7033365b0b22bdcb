package cache

import (
	"crypto/sha256"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// spellings remembers the keys of bodies by a digest of their bytes. A request that is
// repeated byte for byte needs no canonical form then, which takes most of a lookup. One of
// two digests that share a slot is forgotten. It may be used concurrently.
type spellings struct {
	mu    sync.Mutex
	slots [1024]spelling
}

type spelling struct{ digest, key [32]byte }

// digestOf is a digest of all that [keyOf] reads.
func digestOf(k scope, body []byte, c *functions.ExactCache) (sum [32]byte) {
	h := sha256.New()
	k.write(h)
	also := strings.Join(c.Also, ",")
	h.Write([]byte{map[bool]byte{true: 1}[c.AnyTemperature], byte(len(also) >> 8), byte(len(also))})
	h.Write([]byte(also))
	h.Write(body)
	h.Sum(sum[:0])
	return sum
}

func (s *spellings) slot(digest [32]byte) *spelling {
	return &s.slots[(int(digest[0])<<8|int(digest[1]))%len(s.slots)]
}

func (s *spellings) get(digest [32]byte) (key [32]byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.slot(digest)
	return at.key, at.digest == digest
}

func (s *spellings) put(digest, key [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.slot(digest) = spelling{digest, key}
}
