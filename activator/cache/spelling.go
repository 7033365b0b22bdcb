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

// spelling is all that [keyOf] reads.
type spelling struct {
	scope  scope
	config *functions.ExactCache
	body   Body
}

// Body is the bytes of a request's body by their length and two hashes whose seeds are this
// process's alone.
type Body struct {
	size   int
	hashes [2]uint64
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func BodyOf(b []byte) Body {
	return Body{len(b), [2]uint64{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}}
}

func (b *Body) Sum() uint64 { return b.hashes[0] }

func (s *spellings) get(of *spelling) (key [32]byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.slots[of.body.Sum()%uint64(len(s.slots))]
	return at.key, at.spelling == *of
}

func (s *spellings) put(of *spelling, key [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.slots[of.body.Sum()%uint64(len(s.slots))]
	at.spelling, at.key = *of, key
}
