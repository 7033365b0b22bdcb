package store

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Sum is the checksum of a block, of bytes written in order: the xxh3 of the
// xxh3 of every 64 KiB of it. In one level, a hasher that is fed piece by piece
// copies every byte into a buffer of its own first; a leaf that comes at once
// is hashed where it lies.
type Sum struct {
	leaf  xxh3.Hasher // of the leaf that is not whole
	have  int         // its bytes
	leafs xxh3.Hasher
}

const leafSize = 64 << 10

// Write adds b.
func (s *Sum) Write(b []byte) {
	for len(b) > 0 {
		if s.have == 0 && len(b) >= leafSize {
			s.end(xxh3.Hash(b[:leafSize]))
			b = b[leafSize:]
			continue
		}
		n := min(len(b), leafSize-s.have)
		_, _ = s.leaf.Write(b[:n])
		b = b[n:]
		if s.have += n; s.have == leafSize {
			s.end(s.leaf.Sum64())
			s.leaf.Reset()
			s.have = 0
		}
	}
}

func (s *Sum) end(leaf uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], leaf)
	_, _ = s.leafs.Write(b[:])
}

// Sum64 is the checksum of what was written; nothing is written after it.
func (s *Sum) Sum64() uint64 {
	if s.have > 0 {
		s.end(s.leaf.Sum64())
	}
	return s.leafs.Sum64()
}

// Reset begins anew.
func (s *Sum) Reset() {
	s.leaf.Reset()
	s.leafs.Reset()
	s.have = 0
}

// SumOf is the checksum of a whole block.
func SumOf(b []byte) uint64 {
	var s Sum
	s.Write(b)
	return s.Sum64()
}
