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

// sourceDigests are the digests a source keeps of a file besides its sha256, each
// with what it must come to. Where the sha256 is known it says it all.
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
	verdictBlockLost         // a block is not what was written; it was dropped
	verdictMismatch          // all blocks are, and the whole is not what the source promised
)

// verify reads a part behind the front, block by block as they come, and seals
// it. It reads what the disk gives back, mostly from the page cache: a block
// that is not what was written is fetched again.
func (j *stagingJob) verify(ctx context.Context, plan *stagingPlan, p *store.Part) (verdict, error) {
	if j.loader.o.DigestLast {
		select {
		case <-plan.complete:
		case <-ctx.Done():
			return verdictGood, context.Cause(ctx)
		}
	}
	whole := sha256.New()
	sums, want := sourceDigests(p.File)
	// One core reads and holds every block against its checksum, another digests.
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
	for b := range read { // to its end: whoever reads ends with ctx
		writeDigests(whole, sums, b)
		used <- b
	}
	if err != nil || v != verdictGood || sealed {
		return v, err
	}
	got := hex.EncodeToString(whole.Sum(nil))
	if p.File.SHA256 != "" && p.File.SHA256 != got {
		return verdictMismatch, nil
	}
	for i, sum := range sums {
		if !bytes.Equal(sum.Sum(nil), want[i]) {
			return verdictMismatch, nil
		}
	}
	if err := validateFile(p.File.Name, p, p.File.Size, plan.names); err != nil {
		// The source shall say it too.
		if _, others := plan.peerParts.LoadAndDelete(p); others {
			return verdictMismatch, nil
		}
		return verdictGood, withFileName(p.File.Name, err)
	}
	return verdictGood, p.Seal(got)
}

// readBack reads a part, block by block as they come, into pieces that used gives
// and read takes. sealed: there is nothing to read, for another staging has brought
// and digested it.
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
		// The kernel reads the next blocks while this one is digested.
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
				return verdictGood, false, &source.Error{Kind: source.Broken, File: p.File.Name, What: "cannot be read back", Err: err}
			}
			block.Write(b)
			at += int64(len(b))
			read <- b // never full: there are no more pieces than it holds
		}
		if check && block.Sum64() != written {
			p.DropBlock(i)
			plan.done.Add(-n)
			return verdictBlockLost, false, nil
		}
	}
	return verdictGood, false, nil
}

// Pieces that a part is read back in, and how many of them are on their way from
// who reads to who digests.
const (
	readPiece  = 1 << 20
	readPieces = 3
)

// readAhead is how many blocks are on their way from the disk while one is
// digested.
const readAhead = 2

// writeDigests feeds b to every digest, side by side: MD5 alone takes three times as
// long as sha256.
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
