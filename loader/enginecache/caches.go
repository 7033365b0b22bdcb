package enginecache

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Key identifies a cache.
type Key struct {
	// Model is the digest of the checkpoint, or another name of exactly its bytes.
	Model string `json:"model"`
	// Engine is the engine, its version, GPU and flags.
	Engine string `json:"engine"`
}

// String is the name of the cache: a hash, fit for a folder.
func (k Key) String() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", k.Model, k.Engine))
	return hex.EncodeToString(sum[:16])
}

type Options struct {
	// Dir is made when it is needed.
	Dir string
	// Budget bounds the bytes of all caches; 8 GiB if 0. The least recently used one
	// that is not in use is evicted first.
	Budget int64
	// MaxBytes bytes of one cache that is published or fetched; 2 GiB when 0.
	MaxBytes int64
	// Log may be nil.
	Log *slog.Logger
}

// Caches are the compile caches of one node. Its methods are safe for concurrent use.
type Caches struct {
	o    Options
	open func() error // makes the folder, once

	mu sync.Mutex // one eviction at a time
}

// New returns the caches below a folder; nothing is made before it is used.
func New(o Options) *Caches {
	o.Budget = cmp.Or(o.Budget, 8<<30)
	o.MaxBytes = cmp.Or(o.MaxBytes, 2<<30)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	c := &Caches{o: o}
	c.open = sync.OnceValue(c.makeFolder)
	return c
}

// CacheUse is one engine's hold on a cache.
type CacheUse struct {
	c       *Caches
	key     Key
	dir     string // of the key; "" for a scratch
	scratch string // to be removed
	lease   *os.File
	// Fresh: nothing was in it when it was taken.
	Fresh bool
	// Shared are the folders to which its links to shared parts lead.
	Shared []string
}

const (
	cacheName = "cache"
	keyName   = "key.json"
	leaseName = "lease"
	newPrefix = ".new-"
)

func (c *Caches) makeFolder() error {
	if err := os.MkdirAll(c.o.Dir, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(c.o.Dir)
	for _, e := range list {
		// An hour: another process may share the folder for a moment, when
		// one agent takes over from another.
		if fi, ierr := e.Info(); strings.HasPrefix(e.Name(), newPrefix) && ierr == nil && time.Since(fi.ModTime()) > time.Hour {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.o.Dir, e.Name())))
		}
	}
	return err
}

// Acquire returns the cache of a key, and makes an empty one if there is none. shared
// maps names in it to folders that caches have in common: the given one or, if empty,
// one per engine on this node. The caller releases it.
func (c *Caches) Acquire(key Key, engine string, shared map[string]string) (*CacheUse, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	dir := filepath.Join(c.o.Dir, key.String())
	for range 3 {
		lease, err := c.lockLease(dir, key)
		if errors.Is(err, fs.ErrNotExist) {
			if err := c.publish(dir, key, nil); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		now := time.Now()
		_ = os.Chtimes(lease.Name(), now, now) // only the order of eviction depends on it
		u := &CacheUse{c: c, key: key, dir: dir, lease: lease, Fresh: true}
		err = u.linkShared(engine, shared)
		if err == nil {
			err = filepath.WalkDir(u.Path(), func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					u.Fresh = false
					return fs.SkipAll
				}
				return err
			})
		}
		if err != nil {
			u.Release()
			return nil, err
		}
		return u, nil
	}
	return nil, fmt.Errorf("the cache %s comes and goes", key)
}

// Scratch returns an empty cache whose model is not known yet; see KeepAs.
func (c *Caches) Scratch(engine string, shared map[string]string) (*CacheUse, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	u := &CacheUse{c: c, scratch: filepath.Join(c.o.Dir, newPrefix+rand.Text()), Fresh: true}
	if err := os.MkdirAll(u.Path(), 0o700); err != nil {
		return nil, err
	}
	if err := u.linkShared(engine, shared); err != nil {
		u.Release()
		return nil, err
	}
	return u, nil
}

// linkShared makes the links to shared folders. An engine may have put another there.
func (u *CacheUse) linkShared(engine string, names map[string]string) error {
	sum := sha256.Sum256([]byte(engine))
	for n, to := range names {
		own := filepath.Join(u.c.o.Dir, "shared", hex.EncodeToString(sum[:8]), n)
		if to == "" || os.MkdirAll(to, 0o700) != nil {
			to = own // the given folder is not writable: use the node's own
		}
		if err := os.MkdirAll(to, 0o700); err != nil {
			return err
		}
		link := filepath.Join(u.Path(), n)
		if have, err := os.Readlink(link); err == nil && have != to {
			os.Remove(link)
		}
		u.Shared = append(u.Shared, to)
		if err := os.Symlink(to, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// lockLease protects a cache from eviction, and checks that it belongs to the key.
func (c *Caches) lockLease(dir string, key Key) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, leaseName), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, keyName)) // gone, if it was evicted just now
	if err == nil {
		var have Key
		if json.Unmarshal(b, &have) != nil || have != key {
			err = fmt.Errorf("the cache %s belongs to another key", filepath.Base(dir))
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// publish makes a cache in one rename; fill, which may be nil, adds its content. An
// existing one stays.
func (c *Caches) publish(dir string, key Key, write func(into string) error) error {
	tmp := filepath.Join(c.o.Dir, newPrefix+rand.Text())
	defer os.RemoveAll(tmp)
	if err := os.MkdirAll(filepath.Join(tmp, cacheName), 0o700); err != nil {
		return err
	}
	if write != nil {
		if err := write(filepath.Join(tmp, cacheName)); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(key, "", "  ")
	if err != nil {
		return err
	}
	for name, body := range map[string][]byte{keyName: b, leaseName: nil} {
		if err := os.WriteFile(filepath.Join(tmp, name), body, 0o600); err != nil {
			return err
		}
	}
	err = os.Rename(tmp, dir)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// Path is the folder for the engine.
func (u *CacheUse) Path() string { return filepath.Join(cmp.Or(u.scratch, u.dir), cacheName) }

// KeepAs copies what an engine wrote into a scratch cache to the cache of key; the
// engine may continue to write. For other caches it does nothing.
func (u *CacheUse) KeepAs(ctx context.Context, key Key) error {
	if u.scratch == "" || u.dir != "" {
		return nil
	}
	dir := filepath.Join(u.c.o.Dir, key.String())
	if _, err := os.Stat(dir); err != nil {
		files, err := listFiles(u.Path(), u.c.o.MaxBytes)
		if err != nil {
			return err
		}
		if err := u.c.publish(dir, key, func(into string) error { return copyFiles(ctx, u.Path(), into, files) }); err != nil {
			return err
		}
	}
	lease, err := u.c.lockLease(dir, key)
	if err != nil {
		return err
	}
	u.key, u.dir, u.lease = key, dir, lease
	return nil
}

// Release ends the hold. It may be called more than once, and on nil.
func (u *CacheUse) Release() {
	if u == nil {
		return
	}
	u.lease.Close()
	u.lease = nil
	os.RemoveAll(u.scratch)
}

// Trim evicts the least recently used caches until all fit the budget.
func (c *Caches) Trim() error {
	if err := c.open(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := os.ReadDir(c.o.Dir)
	if err != nil {
		return err
	}
	type cache struct {
		dir   string
		bytes int64
		used  time.Time
	}
	var all []cache
	var sum int64
	for _, e := range list {
		dir := filepath.Join(c.o.Dir, e.Name())
		fi, err := os.Stat(filepath.Join(dir, leaseName))
		if err != nil {
			continue
		}
		x := cache{dir: dir, used: fi.ModTime(), bytes: folderSize(dir)}
		sum += x.bytes
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b cache) int { return a.used.Compare(b.used) })
	for _, x := range all {
		if sum <= c.o.Budget {
			return nil
		}
		gone, err := c.evict(x.dir)
		if err != nil {
			return err
		}
		if gone {
			sum -= x.bytes
			c.o.Log.Info("engine cache evicted", "cache", filepath.Base(x.dir), "bytes", x.bytes)
		}
	}
	return nil
}

// evict renames a cache away and deletes it; false if it is in use.
func (c *Caches) evict(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, leaseName), os.O_RDWR, 0)
	if err != nil {
		return false, nil // gone
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, nil
	}
	// A process waiting for the lock finds that the key is gone.
	out := filepath.Join(c.o.Dir, newPrefix+rand.Text())
	if err := os.Rename(dir, out); err != nil {
		return false, err
	}
	return true, os.RemoveAll(out)
}

func folderSize(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if fi, err := d.Info(); err == nil {
				sum += fi.Size()
			}
		}
		return nil // deleted meanwhile
	})
	return sum
}

// copyFiles copies regular files. An engine may put other files in their place meanwhile:
// no link is followed out of the folder, and what is not regular is an error.
func copyFiles(ctx context.Context, from, into string, files []cacheFile) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	to, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, f := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		in, fi, err := openRegular(root, filepath.FromSlash(f.name))
		if err != nil {
			return err
		}
		err = writeFile(to, f, in, fi.Mode())
		in.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// openRegular opens a regular file; a pipe in its place does not block.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}
