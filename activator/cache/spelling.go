package cache

import (
	"hash/maphash"
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// spellings remembers the keys of bodies by a hash of their bytes. A request that is
// repeated byte for byte needs no canonical form then, which takes most of a lookup. One of
// two spellings that share a slot is forgotten. It may be used concurrently.
type spellings struct {
	mu    sync.Mutex
	slots [1024]struct {
		spelling spelling
		key      [32]byte
	}
}

// spelling is all that [keyOf] reads, the body by its length and two hashes whose seeds are
// this process's alone.
type spelling struct {
	scope  scope
	config *functions.ExactCache
	size   int
	body   [2]uint64
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func spellingOf(k scope, body []byte, c *functions.ExactCache) spelling {
	return spelling{k, c, len(body), [2]uint64{maphash.Bytes(seeds[0], body), maphash.Bytes(seeds[1], body)}}
}

func (s *spellings) get(of *spelling) (key [32]byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.slots[of.body[0]%uint64(len(s.slots))]
	return at.key, at.spelling == *of
}

func (s *spellings) put(of *spelling, key [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.slots[of.body[0]%uint64(len(s.slots))]
	at.spelling, at.key = *of, key
}
