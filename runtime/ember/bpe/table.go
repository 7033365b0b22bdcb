package bpe

import "math/bits"

// names maps ids to the bytes of tokens and back. The bytes of all lie in one arena.
type names struct {
	arena []byte
	span  []span  // by id; length 0 means no such token
	slots []int32 // open-addressed, id+1, 0 is free
	mask  uint32
	count int
}

type span struct{ at, n uint32 }

func (n *names) grow(id int32) {
	for int(id) >= len(n.span) {
		n.span = append(n.span, make([]span, max(256, len(n.span)))...)
	}
}

func (n *names) bytes(id int32) []byte {
	if id < 0 || int(id) >= len(n.span) {
		return nil
	}
	s := n.span[id]
	return n.arena[s.at : s.at+s.n : s.at+s.n]
}

// index builds the hash table over all spans. It returns the first id with the
// name of another id, or -1.
func (n *names) index() int32 {
	size := uint32(1) << bits.Len(uint(max(n.count, 8)*2-1))
	n.slots, n.mask = make([]int32, size), size-1
	duplicate := int32(-1)
	for id := range n.span {
		if n.span[id].n == 0 {
			continue
		}
		b := n.bytes(int32(id))
		h := hashBytes(b) & n.mask
		for n.slots[h] != 0 {
			if string(n.bytes(n.slots[h]-1)) == string(b) {
				duplicate = int32(id)
			}
			h = (h + 1) & n.mask
		}
		n.slots[h] = int32(id) + 1
	}
	return duplicate
}

// find returns the id of a name, or -1.
func (n *names) find(b []byte) int32 {
	for h := hashBytes(b) & n.mask; n.slots[h] != 0; h = (h + 1) & n.mask {
		id := n.slots[h] - 1
		if string(n.bytes(id)) == string(b) {
			return id
		}
	}
	return -1
}

// hashBytes is FNV-1a, eight bytes at a time, with a final mix.
func hashBytes(b []byte) uint32 {
	const prime = 0x100000001b3
	h := uint64(0xcbf29ce484222325)
	for len(b) >= 8 {
		w := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
			uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		h = (h ^ w) * prime
		h ^= h >> 29
		b = b[8:]
	}
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	return uint32(h >> 32)
}

// merges maps pairs of ids to the rank of their merge and the id that results.
type merges struct {
	slots []merge
	mask  uint32
}

type merge struct {
	pair uint64 // left+1 in the high half, right in the low; 0 is free
	rank int32
	id   int32
}

func newMerges(n int) *merges {
	size := uint32(1) << bits.Len(uint(max(n, 8)*2-1))
	return &merges{make([]merge, size), size - 1}
}

func pairKey(l, r int32) uint64 { return uint64(l+1)<<32 | uint64(uint32(r)) }

func (m *merges) slot(p uint64) uint32 { return uint32((p*0x9e3779b97f4a7c15)>>32) & m.mask }

// add keeps the first rank of a pair.
func (m *merges) add(l, r, rank, id int32) {
	p := pairKey(l, r)
	h := m.slot(p)
	for m.slots[h].pair != 0 {
		if m.slots[h].pair == p {
			return
		}
		h = (h + 1) & m.mask
	}
	m.slots[h] = merge{p, rank, id}
}

func (m *merges) find(l, r int32) (rank, id int32, ok bool) {
	p := pairKey(l, r)
	for h := m.slot(p); m.slots[h].pair != 0; h = (h + 1) & m.mask {
		if m.slots[h].pair == p {
			return m.slots[h].rank, m.slots[h].id, true
		}
	}
	return 0, 0, false
}
