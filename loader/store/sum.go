package store

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Sum is the checksum of a block, of bytes written in order: the xxh3 of the xxh3 of
// every 64 KiB. A one-level hasher fed piece by piece copies every byte into a buffer
// first; a leaf that comes whole is hashed where it lies.
type Sum struct {
	leaf      xxh3.Hasher // of the incomplete leaf
	leafBytes int         // its bytes
	leaves    xxh3.Hasher
}

const leafSize = 64 << 10

func (s *Sum) Write(b []byte) {
	for len(b) > 0 {
		if s.leafBytes == 0 && len(b) >= leafSize {
			s.addLeaf(xxh3.Hash(b[:leafSize]))
			b = b[leafSize:]
			continue
		}
		n := min(len(b), leafSize-s.leafBytes)
		_, _ = s.leaf.Write(b[:n])
		b = b[n:]
		if s.leafBytes += n; s.leafBytes == leafSize {
			s.addLeaf(s.leaf.Sum64())
			s.leaf.Reset()
			s.leafBytes = 0
		}
	}
}

func (s *Sum) addLeaf(leaf uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], leaf)
	_, _ = s.leaves.Write(b[:])
}

// Sum64 returns the checksum; nothing may be written after it.
func (s *Sum) Sum64() uint64 {
	if s.leafBytes > 0 {
		s.addLeaf(s.leaf.Sum64())
	}
	return s.leaves.Sum64()
}
