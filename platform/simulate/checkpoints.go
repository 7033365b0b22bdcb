package simulate

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// checkpointStore is a node's store: its checkpoints within a byte budget, evicted least recently
// used first, and which of them are in host memory.
type checkpointStore struct {
	budget      functions.Bytes // 0: unlimited
	used        functions.Bytes
	checkpoints map[string]*simCheckpoint
	order       []*simCheckpoint // least recently used first
	version     uint64
	listed      uint64
	rows        []*simCheckpoint        // in order of arrival
	list        []functions.CachedModel // as of version listed; never modified
}

type simCheckpoint struct {
	source string
	digest string
	bytes  functions.Bytes // present on the node
	total  functions.Bytes
	memory bool // entirely in the page cache
	pins   int  // replicas that use it or wait for it
}

func (c *simCheckpoint) complete() bool { return c.bytes >= c.total }

func (s *checkpointStore) use(b *simCheckpoint) {
	if n := len(s.order); n > 0 && s.order[n-1] == b {
		return
	}
	if i := slices.Index(s.order, b); i >= 0 {
		s.order = append(slices.Delete(s.order, i, i+1), b)
	}
}

// reserve makes room for a checkpoint and pins it; nil if there is not enough room.
func (s *checkpointStore) reserve(source string, total functions.Bytes) *simCheckpoint {
	b := s.checkpoints[source]
	have := functions.Bytes(0)
	if b != nil {
		have = b.total
	}
	if s.budget > 0 && s.used-have+total > s.budget {
		for _, x := range slices.Clone(s.order) {
			if x.pins == 0 && x != b {
				s.drop(x)
			}
			if s.used-have+total <= s.budget {
				break
			}
		}
		if s.used-have+total > s.budget {
			return nil
		}
	}
	if b == nil {
		b = &simCheckpoint{source: source, digest: "sha256:" + source}
		s.checkpoints[source] = b
		s.rows = append(s.rows, b)
		s.order = append(s.order, b)
	}
	s.used += total - b.total
	b.total = total
	b.pins++
	s.use(b)
	s.version++
	return b
}

func (s *checkpointStore) drop(b *simCheckpoint) {
	delete(s.checkpoints, b.source)
	s.order = slices.DeleteFunc(s.order, func(x *simCheckpoint) bool { return x == b })
	s.rows = slices.DeleteFunc(s.rows, func(x *simCheckpoint) bool { return x == b })
	s.used -= b.total
	s.version++
}

// trimMemory evicts checkpoints from host memory until the rest fits.
func (s *checkpointStore) trimMemory(limit functions.Bytes) {
	var sum functions.Bytes
	for i := len(s.order) - 1; i >= 0; i-- {
		b := s.order[i]
		if !b.memory {
			continue
		}
		if sum += b.total; sum > limit {
			b.memory = false
			sum -= b.total
			s.version++
		}
	}
}

// cached returns the heartbeat's list of checkpoints, in a stable order.
func (s *checkpointStore) cached() []functions.CachedModel {
	if s.listed == s.version && s.list != nil {
		return s.list
	}
	list := make([]functions.CachedModel, 0, len(s.rows))
	for _, b := range s.rows {
		if !b.complete() {
			continue
		}
		c := functions.CachedModel{Source: b.source, Digest: b.digest, Tier: functions.TierNVMe, Bytes: b.total}
		if b.memory {
			c.Tier, c.Memory = functions.TierDRAM, b.total
		}
		list = append(list, c)
	}
	s.list, s.listed = list, s.version
	return list
}
