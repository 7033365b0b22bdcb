package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// CacheMode is what happens to the caches of engines' compilers. They are code that
// engines run again, so the operator decides where they may come from.
type CacheMode string

const (
	CachesLocal CacheMode = "local"        // kept and reused on the node; "" is the same
	CachesTrust CacheMode = "trust-source" // and fetched from and published to the model's source
	CachesOff   CacheMode = "off"          // engines use their own folders
)

const (
	// fetchWait bounds the fetching of a cache: a slower source would make an
	// engine wait longer for it than it compiles.
	fetchWait   = 2 * time.Minute
	publishWait = 30 * time.Minute
)

// compileCache is one start's hold on a compile cache. nil is none.
type compileCache struct {
	s          *Stager
	use        *enginecache.CacheUse
	engine     string // the key's part
	aliases    []enginecache.Key
	fetchedFor string // digest of the model that a fetched cache was made for; "" if not fetched
	fresh      bool

	from     loader.Source // nil: nothing is fetched or published
	location string
}

// newCompileCache is the cache for a wanted replica, without its model yet; nil if it has
// none.
func (s *Stager) newCompileCache(req replica.StageRequest) *compileCache {
	if s.o.Caches == nil || req.Cache == "" {
		return nil
	}
	k := &compileCache{s: s, engine: req.Cache}
	if s.o.Trust {
		scheme, location, err := loader.Locate(req.Source, req.Dir)
		if err == nil && !source.Weights(location) {
			k.from, k.location = s.o.Sources[scheme], location
		}
	}
	return k
}

// planKey is the key under which another node finds a cache while the checkpoint still
// arrives there: its digest is known only with the last byte.
func (c *compileCache) planKey(plan string) enginecache.Key {
	key := enginecache.Key{Model: "plan:" + plan, Engine: c.engine}
	c.aliases = append(c.aliases, key)
	return key
}

// openCompileCache opens the cache of a checkpoint that has arrived. plan is the listing
// of its source, "" if that was not listed.
func (s *Stager) openCompileCache(ctx context.Context, req replica.StageRequest, c *loader.Checkpoint, plan string) *compileCache {
	k := s.newCompileCache(req)
	if k == nil {
		return nil
	}
	model, err := checkpointID(c)
	key := enginecache.Key{Model: model, Engine: k.engine}
	if err == nil {
		k.use, err = s.o.Caches.Acquire(key, engine.CacheEnvironment(k.engine), s.sharedCaches(req.Engine))
	}
	if err != nil {
		s.o.Log.Warn("no compile cache for this start", "source", req.Source, "error", err)
		return nil
	}
	k.fresh = k.use.Fresh
	if plan != "" {
		k.planKey(plan)
	}
	k.fetch(ctx, key)
	return k
}

// openScratchCache opens an empty cache for a checkpoint that is still arriving.
func (s *Stager) openScratchCache(ctx context.Context, req replica.StageRequest, a *loader.Arrival) *compileCache {
	k := s.newCompileCache(req)
	if k == nil {
		return nil
	}
	var err error
	if k.use, err = s.o.Caches.Scratch(engine.CacheEnvironment(k.engine), s.sharedCaches(req.Engine)); err != nil {
		s.o.Log.Warn("no compile cache for this start", "source", req.Source, "error", err)
		return nil
	}
	k.fresh = true
	k.fetch(ctx, k.planKey(a.Plan))
	return k
}

// sharedCaches are the parts of caches that engines have in common.
func (s *Stager) sharedCaches(e functions.Engine) map[string]string {
	if s.o.Confined {
		return engine.CacheShared(e, nil)
	}
	return engine.CacheShared(e, os.Environ())
}

// fetch fills an empty cache from the source, if sources are trusted. On any error the
// engine compiles.
func (c *compileCache) fetch(ctx context.Context, key enginecache.Key) {
	if !c.fresh || c.from == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	began := time.Now()
	model, n, err := c.use.Fetch(ctx, c.from, c.location, key)
	switch {
	case errors.Is(err, enginecache.ErrNone):
	case err != nil:
		c.s.o.Log.Warn("the source's compile cache is not used", "source", c.location, "error", err)
	default:
		c.fetchedFor, c.fresh = model, false
		c.s.o.Log.Info("compile cache from the source", "source", c.location, "bytes", n, "took", time.Since(began))
	}
}

// path is the folder that the engine gets.
func (c *compileCache) path() string {
	if c == nil {
		return ""
	}
	return c.use.Path()
}

// shared are the folders that the cache has in common with others.
func (c *compileCache) shared() []string {
	if c == nil {
		return nil
	}
	return c.use.Shared
}

func (c *compileCache) release() {
	if c != nil {
		c.use.Release()
	}
}

// onWarm returns what runs when the engine has warmed up: it keeps the compiled files
// under the checkpoint's own key, and publishes them if they are new and sources are
// trusted.
func (c *compileCache) onWarm(checkpoint *loader.Checkpoint) func(ctx context.Context) error {
	if c == nil {
		return nil
	}
	return func(ctx context.Context) error {
		model, err := checkpointID(checkpoint)
		if err != nil {
			return err
		}
		if c.fetchedFor != "" && c.fetchedFor != model {
			// By its own manifest: it was published under another model's location.
			return fmt.Errorf("the source's compile cache was made for %s, not for %s: it is not kept", c.fetchedFor, model)
		}
		if err := c.use.KeepAs(ctx, enginecache.Key{Model: model, Engine: c.engine}); err != nil {
			return err
		}
		if err := c.s.o.Caches.Trim(); err != nil {
			return err
		}
		if !c.fresh || c.from == nil {
			return nil
		}
		to, ok := c.from.(enginecache.Writer)
		if !ok {
			c.s.o.Log.Info("this kind of source cannot store a compile cache; it is kept on this node", "source", c.location)
			return nil
		}
		return c.publish(ctx, to)
	}
}

func (c *compileCache) publish(ctx context.Context, to enginecache.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	began := time.Now()
	n, err := c.use.Publish(ctx, to, c.location, c.aliases...)
	if source.KindOf(err) == source.Denied {
		c.s.o.Log.Info("the source refuses the compile cache; it is kept on this node", "source", c.location, "why", err)
		return nil
	}
	if err == nil && n > 0 {
		c.s.o.Log.Info("compile cache published", "source", c.location, "bytes", n, "took", time.Since(began))
	}
	return err
}

// checkpointID identifies the bytes of a checkpoint: its digest or, for a folder used in
// place, which is not hashed, its files' sizes and times.
func checkpointID(c *loader.Checkpoint) (string, error) {
	if c.Digest != "" {
		return c.Digest, nil
	}
	h := sha256.New()
	for _, f := range c.Files {
		fi, err := os.Stat(filepath.Join(c.Path, filepath.FromSlash(f.Name)))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d %d\n", f.Name, fi.Size(), fi.ModTime().UnixNano())
	}
	return fmt.Sprintf("folder:%s %s", c.Path, hex.EncodeToString(h.Sum(nil)[:16])), nil
}
