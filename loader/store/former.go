package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/source"
)

// A former checkpoint was written by a thaw that named files by the SHA-256 of all their
// bytes, under blobs/sha256. It can be leased, listed, verified and evicted like any other:
// engines use it when the loader is upgraded under them. The next staging of its source
// takes its files over: it reads each once, compares the SHA-256, and computes the digests
// of the blocks, in place of a download.

// former reports whether a manifest was written by the former format, which named none.
func (e Entry) former() bool { return e.Format == 0 }

// validFormer reports whether a manifest of the former format is whole.
func (e Entry) validFormer(h string) bool {
	return e.Digest == "sha256:"+h && len(e.Files) > 0 && !slices.ContainsFunc(e.Files, func(f File) bool {
		return !isHex(f.SHA256, 64) || f.Tree != "" || f.Size < 0 || source.CheckName(f.Name) != nil
	})
}

// formerFile is a file of a former checkpoint that a staging takes over.
type formerFile struct {
	path   string // "": there is none
	sha256 string
}

// formerFiles returns, for each of files, the same bytes in the former checkpoint of a place.
func (s *Store) formerFiles(locationKey string, files []source.File) []formerFile {
	out := make([]formerFile, len(files))
	ix, ok := s.index(locationKey)
	if !ok || ix.Block != 0 {
		return out
	}
	h, err := ParseDigest(ix.Digest)
	if err != nil {
		return out
	}
	e, err := s.entry(h)
	if err != nil || !e.former() {
		return out
	}
	listed := map[planFile]bool{}
	for _, f := range ix.Files {
		listed[planFile{Name: f.Name, Size: f.Size, Version: f.Version}] = true
	}
	for i, f := range files {
		for _, k := range e.Files {
			same := f.SHA256 == k.SHA256 || f.SHA256 == "" && f.Version != "" && listed[planFile{Name: f.Name, Size: f.Size, Version: f.Version}]
			if k.Name == f.Name && k.Size == f.Size && k.Size > 0 && same {
				out[i] = formerFile{filepath.Join(e.Path, filepath.FromSlash(k.Name)), k.SHA256}
			}
		}
	}
	return out
}

// linkFormer links the file of a former checkpoint in place of the part; the caller holds
// the store's lock. It reports whether there was one.
func (p *Part) linkFormer() (bool, error) {
	if p.former.path == "" {
		return false, nil
	}
	if fi, err := os.Stat(p.former.path); err != nil || fi.Size() != p.File.Size {
		p.former = formerFile{}
		return false, ignoreMissing(err)
	}
	if err := ignoreMissing(os.Remove(p.path)); err != nil {
		return false, err
	}
	if err := p.ingest.s.step("link former file"); err != nil {
		return false, err
	}
	return true, os.Link(p.former.path, p.path)
}

// digestFormer reads the part, which linkFormer has linked, and marks its blocks as here. If
// its bytes are not what was verified when they came, the part restarts empty. The caller
// holds mu.
func (p *Part) digestFormer(ctx context.Context) error {
	whole, buf := sha256.New(), make([]byte, min(p.block, p.File.Size, checkEvery))
	good := true
	for i := 0; i < len(p.have) && good; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		off, n := p.Range(i)
		var sum Sum
		digest := blake3.New()
		good = p.reread(&sum, io.MultiWriter(digest, whole), buf, off, n)
		p.sums[i], p.digests[i] = sum.Sum64(), BlockDigest(digest.Sum(nil))
	}
	s := p.ingest.s
	if !good || hex.EncodeToString(whole.Sum(nil)) != p.former.sha256 {
		s.o.Log.Warn("a file of a checkpoint of an earlier version of thaw is damaged, it is fetched again", "file", p.File.Name)
		return s.locked(func() error {
			if err := s.reserve(p.File.Size, p.ingest.key); err != nil {
				return err
			}
			return p.replace()
		})
	}
	for i := range p.have {
		p.have[i] = true
	}
	p.blocksHere, p.bytes, p.resumed = len(p.have), p.File.Size, p.File.Size
	return nil
}

// dropFormer removes the former checkpoint that e replaces, unless it is in use; then it is
// evicted later. A pin passes on to e. The caller holds the store's lock.
func (s *Store) dropFormer(digest string, e Entry) error {
	h, err := ParseDigest(digest)
	if err != nil {
		return err
	}
	f, err := s.entry(h)
	if err != nil || !f.former() {
		return nil
	}
	if f.PinnedByUser {
		now, err := ParseDigest(e.Digest)
		if err != nil {
			return err
		}
		if err := durable.WriteFile(s.path("checkpoints", now, pinName), nil, 0o644); err != nil {
			return err
		}
		if err := ignoreMissing(os.Remove(filepath.Join(filepath.Dir(f.Path), pinName))); err != nil {
			return err
		}
	}
	s.o.Log.Info("checkpoint of an earlier version of thaw taken over", "source", e.Source, "digest", e.Digest, "was", digest)
	if ok, err := s.evictCheckpoint(h); err != nil || !ok {
		return err
	}
	_, err = s.dropBlobs() // those of files that were not taken over
	return err
}

// readSHA256 returns the hex SHA-256 of size bytes of r.
func readSHA256(ctx context.Context, r io.ReaderAt, size int64) (string, error) {
	h, buf := sha256.New(), make([]byte, checkEvery)
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-off)], off)
		if err != nil && !(err == io.EOF && off+int64(n) == size) {
			return "", err
		}
		h.Write(buf[:n])
		off += int64(n)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
