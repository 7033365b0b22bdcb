package loader

import "sync"

// maxDigests bounds the cache.
const maxDigests = 10_000

// digestCache keeps the digests of files used in place, by path, size and modification
// time.
type digestCache struct {
	mu sync.Mutex
	m  map[string]string
}

func (s *digestCache) get(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[id]
}

func (s *digestCache) put(id, sum string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m) >= maxDigests {
		s.m = make(map[string]string)
	}
	s.m[id] = sum
}
