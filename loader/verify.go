package loader

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// nvme is the polynomial of CRC-64/NVME, reversed, as S3 and Azure count.
const nvme = 0x9a6c9329ac4bc9b5

type wholeDigest struct {
	hash.Hash
	want []byte
}

// sourceDigests returns the digests that a source names of a file. A sha256 makes the
// others needless.
func sourceDigests(file source.File) (out []wholeDigest, err error) {
	add := func(h func() hash.Hash, want []byte) {
		if want != nil {
			out = append(out, wholeDigest{h(), want})
		}
	}
	if file.SHA256 != "" {
		want, err := hex.DecodeString(file.SHA256)
		if err != nil || len(want) != sha256.Size {
			return nil, source.Fail(source.Digest, fmt.Sprintf("has the sha256 %.80q at its source", file.SHA256), "64 hex digits").At("", file.Name)
		}
		add(sha256.New, want)
		return out, nil
	}
	add(md5.New, file.MD5)
	add(func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }, file.CRC32C)
	add(func() hash.Hash { return crc64.New(crc64.MakeTable(nvme)) }, file.CRC64)
	return out, nil
}

// verdict on a file that was read back.
type verdict int

const (
	verdictGood      verdict = iota
	verdictBlockLost         // a block differs from what was written; it was dropped
	verdictMismatch          // the whole file does not match the source's digest
)

// verify waits for the blocks of a part and finishes it. Where the source names a digest
// of the whole file, the blocks are read back in order as they arrive, from the disk if
// they were written with O_DIRECT, and compared with their checksums. Of other files the
// blocks were hashed in memory as they arrived, and are not read back.
func (s *stagingPlan) verify(ctx context.Context, p *store.Part) (verdict, error) {
	digests, err := sourceDigests(p.File)
	if err != nil {
		return verdictGood, err
	}
	var v verdict
	var finished bool
	if len(digests) == 0 {
		finished, err = awaitBlocks(ctx, p)
	} else {
		v, finished, err = s.digestWhole(ctx, p, digests)
	}
	if err != nil || v != verdictGood || finished {
		return v, err
	}
	if err := validateFile(p.File.Name, p, p.File.Size, s.names); err != nil {
		// A peer may have sent it: the source is asked first.
		if _, others := s.peerParts.LoadAndDelete(p); others {
			return verdictMismatch, nil
		}
		return verdictGood, source.WithFile(err, p.File.Name)
	}
	return verdictGood, p.Finish()
}

// awaitBlocks waits for every block of a part. finished: another staging has brought it.
func awaitBlocks(ctx context.Context, p *store.Part) (finished bool, err error) {
	for i := range p.Blocks() {
		if err := awaitBlock(ctx, p, i); err != nil {
			return false, err
		}
	}
	return p.Tree() != "", nil
}

// digestWhole computes the digests of a part in order and compares them.
func (s *stagingPlan) digestWhole(ctx context.Context, p *store.Part, digests []wholeDigest) (v verdict, finished bool, err error) {
	// One goroutine reads and compares block checksums, another computes digests.
	read, used := make(chan []byte, readPieces), make(chan []byte, readPieces)
	for range readPieces {
		used <- nil
	}
	go func() {
		defer close(read)
		v, finished, err = s.readBack(ctx, p, used, read)
	}()
	for b := range read { // until readBack closes it, at the latest when ctx ends
		writeDigests(digests, b)
		used <- b
	}
	if err != nil || v != verdictGood || finished {
		return v, finished, err
	}
	for _, d := range digests {
		if !bytes.Equal(d.Sum(nil), d.want) {
			return verdictMismatch, false, nil
		}
	}
	return verdictGood, false, nil
}

// readBack reads a part, block by block as they arrive, into pieces taken from used
// and sent to read. finished: another staging has brought the part.
func (s *stagingPlan) readBack(ctx context.Context, p *store.Part, used <-chan []byte, read chan<- []byte) (v verdict, finished bool,
	err error) {
	next := 0
	for i := range p.Blocks() {
		if err := awaitBlock(ctx, p, i); err != nil {
			return verdictGood, false, err
		}
		if i == 0 && p.Tree() != "" {
			return verdictGood, true, nil
		}
		written, check := p.BlockSum(i)
		var block store.Sum
		off, n := p.Range(i)
		// The kernel reads the next blocks while this one is hashed.
		for ; next < p.Blocks() && next <= i+readAhead && p.Has(next); next++ {
			p.StartRead(next)
		}
		for at := off; at < off+n; {
			var b []byte
			select {
			case b = <-used:
			case <-ctx.Done():
				return verdictGood, false, context.Cause(ctx)
			}
			if b == nil {
				b = make([]byte, readPiece)
			}
			b = b[:min(readPiece, off+n-at)]
			if _, err := p.ReadAt(b, at); err != nil {
				return verdictGood, false, &source.Error{Kind: source.Broken, File: p.File.Name, Detail: "cannot be read back", Err: err}
			}
			block.Write(b)
			at += int64(len(b))
			read <- b // never blocks: it holds as many pieces as exist
		}
		if check && block.Sum64() != written {
			p.DropBlock(i)
			s.done.Add(-n)
			return verdictBlockLost, false, nil
		}
	}
	return verdictGood, false, nil
}

// Size of the pieces a part is read back in, and their number.
const (
	readPiece  = 1 << 20
	readPieces = 3
)

// readAhead is how many blocks the kernel reads ahead of the one being hashed.
const readAhead = 2

// writeDigests feeds b to every digest in parallel: MD5 takes three times as long as
// sha256.
func writeDigests(digests []wholeDigest, b []byte) {
	var wg sync.WaitGroup
	for _, d := range digests[1:] {
		wg.Go(func() { d.Write(b) })
	}
	digests[0].Write(b)
	wg.Wait()
}

func awaitBlock(ctx context.Context, p *store.Part, i int) error {
	for {
		next := p.Changed()
		if p.Has(i) {
			return nil
		}
		if err := awaitClosed(ctx, next); err != nil {
			return err
		}
	}
}

// excludeSenders excludes the nodes that sent blocks of a file, which are not the source's,
// and distrusts all else that they sent.
func (s *stagingPlan) excludeSenders(file string) {
	for name, blocks := range s.swarm.Exclude(file) {
		p := s.parts[name]
		p.ForgetBlocks(blocks...)
		if digests, err := sourceDigests(p.File); err == nil && len(digests) == 0 {
			s.mu.Lock()
			s.distrusted[p] = true
			s.mu.Unlock()
		}
	}
}

// dropDistrusted drops the parts with blocks of excluded nodes that no digest of the source
// shows to be right; they are fetched again, from the source. No goroutine works on them.
func (s *stagingPlan) dropDistrusted() error {
	for p := range s.distrusted {
		delete(s.distrusted, p)
		if p.IsPublished() {
			continue
		}
		s.corrupted.Store(true)
		s.from.log.Warn("file holds blocks of a node that sent other bytes than the source's, fetching it again", "file", p.File.Name)
		if err := s.reset(p); err != nil {
			return err
		}
		s.progress.update(func(g *Progress) { g.State = Fetching })
	}
	return nil
}

// reset drops what is here of a part.
func (s *stagingPlan) reset(p *store.Part) error {
	s.done.Add(-p.Bytes())
	return p.Reset()
}
