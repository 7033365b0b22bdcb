package loader

import "sync"

const maxDigests = 10_000

// digestCache keeps the digests of files used in place, by path, size and modification
// time.
type digestCache struct {
	mu sync.Mutex
	m  map[string]string
}

func (c *digestCache) get(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[id]
}

func (c *digestCache) put(id, sum string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxDigests {
		c.m = make(map[string]string)
	}
	c.m[id] = sum
}
