package loader

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// nvme is the polynomial of CRC-64/NVME, reversed, as S3 and Azure count.
const nvme = 0x9a6c9329ac4bc9b5

// sourceDigests returns the hashes of the digests a source keeps of a file, with their
// expected values. A known sha256 makes them needless.
func sourceDigests(file source.File) (sums []hash.Hash, want [][]byte) {
	add := func(h func() hash.Hash, sum []byte) {
		if sum != nil && file.SHA256 == "" {
			sums, want = append(sums, h()), append(want, sum)
		}
	}
	add(md5.New, file.MD5)
	add(func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }, file.CRC32C)
	add(func() hash.Hash { return crc64.New(crc64.MakeTable(nvme)) }, file.CRC64)
	return sums, want
}

// verdict on a file that was read back.
type verdict int

const (
	verdictGood      verdict = iota
	verdictBlockLost         // a block differs from what was written; it was dropped
	verdictMismatch          // the whole file does not match the source's digest
)

// verify reads a part back from the disk (mostly the page cache), block by block as
// they arrive, compares the checksums and seals the part with its sha256.
func (j *stagingJob) verify(ctx context.Context, plan *stagingPlan, p *store.Part) (verdict, error) {
	if j.loader.o.DigestLast {
		select {
		case <-plan.complete:
		case <-ctx.Done():
			return verdictGood, context.Cause(ctx)
		}
	}
	complete := sha256.New()
	sums, want := sourceDigests(p.File)
	// One goroutine reads and compares block checksums, another computes digests.
	read, used := make(chan []byte, readPieces), make(chan []byte, readPieces)
	for range readPieces {
		used <- nil
	}
	var v verdict
	var sealed bool
	var err error
	go func() {
		defer close(read)
		v, sealed, err = readBack(ctx, plan, p, used, read)
	}()
	for b := range read { // until readBack closes it, at the latest when ctx ends
		writeDigests(complete, sums, b)
		used <- b
	}
	if err != nil || v != verdictGood || sealed {
		return v, err
	}
	got := hex.EncodeToString(complete.Sum(nil))
	if p.File.SHA256 != "" && p.File.SHA256 != got {
		return verdictMismatch, nil
	}
	for i, sum := range sums {
		if !bytes.Equal(sum.Sum(nil), want[i]) {
			return verdictMismatch, nil
		}
	}
	if err := validateFile(p.File.Name, p, p.File.Size, plan.names); err != nil {
		// A peer may have sent it: the source is asked first.
		if _, others := plan.peerParts.LoadAndDelete(p); others {
			return verdictMismatch, nil
		}
		return verdictGood, withFileName(p.File.Name, err)
	}
	return verdictGood, p.Finish(got)
}

// readBack reads a part, block by block as they arrive, into pieces taken from used
// and sent to read. sealed: another staging has already digested the part.
func readBack(ctx context.Context, plan *stagingPlan, p *store.Part, used <-chan []byte, read chan<- []byte) (v verdict, sealed bool, err error) {
	next := 0
	for i := range p.Blocks() {
		if err := awaitBlock(ctx, p, i); err != nil {
			return verdictGood, false, err
		}
		if i == 0 && p.SHA256() != "" {
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
			plan.done.Add(-n)
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

// writeDigests feeds b to every hash in parallel: MD5 takes three times as long as
// sha256.
func writeDigests(first hash.Hash, more []hash.Hash, b []byte) {
	if len(more) == 0 {
		first.Write(b)
		return
	}
	var wg sync.WaitGroup
	for _, h := range more {
		wg.Go(func() { h.Write(b) })
	}
	first.Write(b)
	wg.Wait()
}

// awaitBlock waits for a block.
func awaitBlock(ctx context.Context, p *store.Part, i int) error {
	for {
		next := p.Changed()
		if p.Has(i) {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
