package store

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"io"
	"runtime"
	"sync"

	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
)

// BlockDigest is the BLAKE3 digest of a block: on most processors it takes half the time
// of SHA-256.
type BlockDigest [32]byte

// treeMagic begins what a tree digest is computed of.
const treeMagic = "thaw tree 1\n"

// Tree returns the tree digest of a file of size bytes from the digests of its blocks, in
// order: the hex BLAKE3 digest of treeMagic, the block size and the file size (8 bytes
// each, little-endian) and every block's digest. Every block but the last has block bytes.
func Tree(size, block int64, digests []BlockDigest) string {
	h := blake3.New()
	_, _ = h.WriteString(treeMagic)
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(block)))
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	for i := range digests {
		_, _ = h.Write(digests[i][:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// readers bounds the cores that ReadTree uses: engines serve beside it.
const readers = 4

// ReadTree returns the tree digest of size bytes of r. It reads and hashes several blocks
// at once.
func ReadTree(ctx context.Context, r io.ReaderAt, size, block int64) (string, error) {
	digests := make([]BlockDigest, (size+block-1)/block)
	buffers := sync.Pool{New: func() any { b := make([]byte, min(block, checkEvery)); return &b }}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(readers, runtime.GOMAXPROCS(0)))
	for i := range digests {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			h := blake3.New()
			buf := buffers.Get().(*[]byte)
			defer buffers.Put(buf)
			off := int64(i) * block
			_, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{io.NewSectionReader(r, off, min(block, size-off))}, *buf)
			digests[i] = BlockDigest(h.Sum(nil))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	return Tree(size, block, digests), nil
}

// Sum is the checksum of a block, of bytes written in order: the xxh3 of the xxh3 of
// every 64 KiB. A one-level hasher fed piece by piece copies every byte into a buffer
// first; a leaf that comes whole is hashed where it lies.
type Sum struct {
	leaf      xxh3.Hasher // of the incomplete leaf
	leafBytes int         // its bytes
	leaves    xxh3.Hasher
}

const leafSize = 64 << 10

// Write returns len(b) and no error.
func (s *Sum) Write(b []byte) (int, error) {
	all := len(b)
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
	return all, nil
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
