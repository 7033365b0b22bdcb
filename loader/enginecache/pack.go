package enginecache

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/loader/source"
)

// Folder is where a source keeps the caches of the checkpoint in the folder above. The
// loader stages nothing of it.
const Folder = "_thaw/cache"

const (
	maxFiles    = 20_000
	maxManifest = 8 << 20
	rangeBytes  = 8 << 20 // of a pack that are asked for at once
)

type cacheFile struct {
	name string
	size int64
}

// manifest names a pack and the key it belongs to.
type manifest struct {
	Format int `json:"format"` // 1
	Key    Key `json:"key"`
	// Model is the digest of the checkpoint, also where the key names it
	// otherwise.
	Model string `json:"model"`
	Pack  string `json:"pack"` // sha256 of the tar file
	Size  int64  `json:"size"` // of the tar file
}

// Remote is a source of caches; loader.Source implements it.
type Remote interface {
	Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error)
	Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error)
}

// Writer is a Remote that can be written to. Write stores size bytes of body as name
// below location, atomically, replacing it. It may be called again after a failure. A
// denied write is an error of kind source.Denied.
type Writer interface {
	Remote
	Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error
}

var ErrNone = errors.New("the source has no such cache")

// listFiles lists the regular files of a folder, in order, without links and other
// types.
func listFiles(dir string, maximum int64) ([]cacheFile, error) {
	var files []cacheFile
	var sum int64
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if checkName(name) != nil || strings.HasSuffix(name, ".lock") {
			return nil // engines write no such names
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		sum += fi.Size()
		files = append(files, cacheFile{name, fi.Size()})
		if len(files) > maxFiles || sum > maximum {
			return fmt.Errorf("the cache is larger than %d files or %d bytes", maxFiles, maximum)
		}
		return nil
	})
	return files, err
}

// checkName refuses names that leave the folder. source.CheckName would refuse too
// many names of compiled code.
func checkName(name string) error {
	switch {
	case name == "" || len(name) > 1024 || strings.Count(name, "/") > 16:
	case strings.ContainsAny(name, "\\\x00") || name != path.Clean(name) || !filepath.IsLocal(name):
	default:
		return nil
	}
	return fmt.Errorf("the name %.80q leaves the cache", name)
}

// Publish writes the cache to the source, under its own key and those of also (other
// names of the same model), and returns the bytes sent. An existing key stays as it
// is.
func (u *CacheUse) Publish(ctx context.Context, to Writer, location string, also ...Key) (int64, error) {
	if u.dir == "" {
		return 0, errors.New("a cache is published after it was settled")
	}
	at := location + "/" + Folder
	have, err := listNames(ctx, to, at)
	if err != nil {
		return 0, err
	}
	if _, ok := have[u.key.String()+".json"]; ok {
		return 0, nil
	}
	files, err := listFiles(filepath.Join(u.dir, cacheName), u.c.o.MaxBytes)
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, nil
	}
	tmp, err := os.CreateTemp(u.c.o.Dir, newPrefix)
	if err != nil {
		return 0, err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	m := manifest{Format: 1, Model: u.key.Model}
	sum := sha256.New()
	if err := writePack(ctx, io.MultiWriter(tmp, sum), filepath.Join(u.dir, cacheName), files); err != nil {
		return 0, err
	}
	m.Pack = hex.EncodeToString(sum.Sum(nil))
	if m.Size, err = tmp.Seek(0, io.SeekEnd); err != nil {
		return 0, err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	if err := to.Write(ctx, at, m.Pack+".tar", tmp, m.Size); err != nil {
		return 0, err
	}
	// Last: a manifest implies its pack.
	for _, k := range append([]Key{u.key}, also...) {
		m.Key = k
		b, err := json.MarshalIndent(m, "", " ")
		if err != nil {
			return m.Size, err
		}
		if err := to.Write(ctx, at, k.String()+".json", bytes.NewReader(b), int64(len(b))); err != nil {
			return m.Size, err
		}
	}
	return m.Size, nil
}

// writePack writes files as a reproducible tar.
func writePack(ctx context.Context, w io.Writer, dir string, files []cacheFile) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewWriter(w)
	for _, f := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := packFile(t, root, f); err != nil {
			return err
		}
	}
	return t.Close()
}

func packFile(t *tar.Writer, root *os.Root, f cacheFile) error {
	in, fi, err := openRegular(root, filepath.FromSlash(f.name))
	if err != nil {
		return err
	}
	defer in.Close()
	// Triton maps shared objects that it compiled: the mode matters.
	mode := int64(0o600 | fi.Mode()&0o100)
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: f.size, Mode: mode, Format: tar.FormatPAX}); err != nil {
		return err
	}
	if _, err := io.CopyN(t, in, f.size); err != nil {
		return fmt.Errorf("%s changes while it is packed: %w", f.name, err)
	}
	return nil
}

// Fetch reads the cache of a key from a source into an empty one, and returns the
// digest of its model; ErrNone if the source has none. Nothing enters the cache before
// the pack's digest matched.
func (u *CacheUse) Fetch(ctx context.Context, from Remote, location string, key Key) (model string, bytes int64, err error) {
	have, err := listNames(ctx, from, location+"/"+Folder)
	if err != nil {
		return "", 0, err
	}
	f, ok := have[key.String()+".json"]
	if !ok {
		return "", 0, ErrNone
	}
	m, err := u.c.manifest(ctx, from, f, key)
	if err != nil {
		return "", 0, err
	}
	p, ok := have[m.Pack+".tar"]
	if !ok || p.Size != m.Size {
		return "", 0, fmt.Errorf("the pack of the cache %s is not there, or not whole", key)
	}
	tmp, err := os.MkdirTemp(u.c.o.Dir, newPrefix)
	if err != nil {
		return "", 0, err
	}
	defer os.RemoveAll(tmp)
	if err := unpack(ctx, from, p, m, tmp, u.c.o.MaxBytes); err != nil {
		return "", 0, err
	}
	// Shared links stay; the rest of the pack is moved in.
	list, err := os.ReadDir(tmp)
	if err != nil {
		return "", 0, err
	}
	for _, e := range list {
		if err := os.Rename(filepath.Join(tmp, e.Name()), filepath.Join(u.Path(), e.Name())); err != nil {
			// A folder that an engine of the same key made meanwhile, or a
			// shared one: what is there is good as well.
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			return "", 0, err
		}
	}
	u.Fresh = false
	return m.Model, m.Size, nil
}

// listNames lists a location; an empty one is no error.
func listNames(ctx context.Context, from Remote, at string) (map[string]source.File, error) {
	plan, err := from.Plan(ctx, at, nil)
	if k := source.KindOf(err); k == source.NotFound || k == source.Missing {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]source.File, len(plan.Files))
	for _, f := range plan.Files {
		out[f.Name] = f
	}
	return out, nil
}

func (c *Caches) manifest(ctx context.Context, from Remote, f source.File, key Key) (m manifest, err error) {
	if f.Size > maxManifest {
		return m, fmt.Errorf("%s: %d bytes are too many for a manifest", f.Name, f.Size)
	}
	body, err := from.Read(ctx, f, 0, f.Size)
	if err != nil {
		return m, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, f.Size))
	if err != nil {
		return m, err
	}
	return parseManifest(b, key, c.o.MaxBytes)
}

// parseManifest checks all of a manifest that can be checked without the pack.
func parseManifest(b []byte, key Key, maximum int64) (m manifest, err error) {
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("the manifest of the cache: %w", err)
	}
	switch {
	case m.Format != 1:
		return m, fmt.Errorf("the manifest of the cache has the format %d, not 1", m.Format)
	case m.Key != key:
		return m, errors.New("the manifest of the cache belongs to another key")
	case !isHex(m.Pack) || m.Size < 0 || m.Size > maximum:
		return m, errors.New("the manifest of the cache is invalid")
	}
	return m, nil
}

func isHex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// unpack extracts a pack into an empty folder, of which nothing may be used after an error.
func unpack(ctx context.Context, from Remote, p source.File, m manifest, into string, maximum int64) error {
	root, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer root.Close()
	digest := sha256.New()
	ranges := io.NewSectionReader(&packReader{ctx, from, p}, 0, p.Size)
	r := io.TeeReader(bufio.NewReaderSize(ranges, rangeBytes), digest)
	t := tar.NewReader(r)
	var sum int64
	for files := 1; ; files++ {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("the pack of the cache: %w", err)
		}
		if err := checkName(h.Name); err != nil {
			return err
		}
		if sum += h.Size; h.Typeflag != tar.TypeReg || h.Size > maximum || sum > maximum || files > maxFiles {
			return fmt.Errorf("the pack of the cache: %.80q is no file, or one too many", h.Name)
		}
		if err := writeFile(root, cacheFile{h.Name, h.Size}, t, fs.FileMode(h.Mode)); err != nil {
			return err
		}
	}
	// The tail, which tar does not read.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != m.Pack {
		return fmt.Errorf("the pack of the cache has the digest %s, %s is promised", got, m.Pack)
	}
	return nil
}

// writeFile makes a file of a cache, which may be executable, from the next bytes of in.
func writeFile(root *os.Root, f cacheFile, in io.Reader, mode fs.FileMode) error {
	name := filepath.FromSlash(f.name)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600|mode&0o100)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, in, f.size)
	return errors.Join(err, out.Close())
}

type packReader struct {
	ctx  context.Context
	from Remote
	file source.File
}

func (r *packReader) ReadAt(b []byte, off int64) (int, error) {
	body, err := r.from.Read(r.ctx, r.file, off, int64(len(b)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	return io.ReadFull(body, b)
}
