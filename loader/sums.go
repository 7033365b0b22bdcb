package loader

import "sync"

// maxSums bounds what is remembered.
const maxSums = 10_000

// sums remembers digests of files that are used in place, by path, size and
// modification time.
type sums struct {
	mu sync.Mutex
	m  map[string]string
}

func (s *sums) get(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[id]
}

func (s *sums) put(id, sum string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m) >= maxSums {
		s.m = make(map[string]string)
	}
	s.m[id] = sum
}
