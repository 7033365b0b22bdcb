package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// Stager stages checkpoints for replicas. A staging whose replica was called off
// goes on at low priority, until it is done, abandonedFor is over, or Close.
type Stager struct {
	loader     *loader.Loader
	o          StagerOptions
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	arrivals   arrivingViews
}

// StagerOptions are how a stager works. The zero value stages whole checkpoints.
type StagerOptions struct {
	// Arriving is the agent's folder for checkpoints that are still arriving;
	// "": engines start after the last byte.
	Arriving string
	// Early is how many bytes must be missing for a start before the last of
	// them: below, a mount costs more than it saves.
	Early functions.Bytes
	// NoMount: nothing is mounted, as where there is no FUSE.
	NoMount bool
	// Caches are the compile caches; nil keeps none. With Trust they are fetched
	// from and published to the models' sources, too.
	Caches *enginecache.Caches
	Trust  bool
	// Confined engines share no cache folder of this user's home.
	Confined bool
	// Sources by scheme, the loader's own; for Trust.
	Sources map[string]loader.Source
	Log     *slog.Logger // may be nil
}

// abandonedFor bounds the download of a staging whose replica was called off.
const abandonedFor = time.Hour

// NewStager is the stager of a loader. Close it before the loader.
func NewStager(l *loader.Loader, o StagerOptions) *Stager {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	return &Stager{loader: l, o: o, ctx: ctx, cancel: cancel}
}

// Close ends downloads that no replica waits for, and unmounts everything.
func (s *Stager) Close() {
	s.cancel()
	s.background.Wait()
	s.arrivals.close()
}

// Stage downloads a source. It is a replica.Stager.
func (s *Stager) Stage(ctx context.Context, req replica.StageRequest, progress func(have, total functions.Bytes)) (replica.Checkpoint,
	error) {
	st, err := s.startStaging(ctx, req)
	if err != nil {
		return replica.Checkpoint{}, err
	}
	defer forwardProgress(st, req, progress)()
	return s.awaitCheckpoint(ctx, req, st)
}

func (s *Stager) startStaging(ctx context.Context, req replica.StageRequest) (*loader.Staging, error) {
	return s.loader.Stage(ctx, req.Source, loader.StageOptions{Base: req.Dir, Digest: req.Digest, Files: req.Files})
}

// forwardProgress passes progress on until the function it returns has been called.
func forwardProgress(st *loader.Staging, req replica.StageRequest, progress func(have, total functions.Bytes)) (stop func()) {
	events, unsubscribe := st.Events()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p := range events {
			progress(functions.Bytes(p.Done), functions.Bytes(p.Total))
			if req.Problem != nil {
				req.Problem(p.Problem)
			}
		}
	}()
	return func() { unsubscribe(); <-done }
}

// awaitStaging waits for all of a staging, and releases it on an error. check, if not nil,
// may refuse the checkpoint.
func (s *Stager) awaitStaging(ctx context.Context, st *loader.Staging, check func() error) (*loader.Checkpoint, error) {
	c, err := st.Wait(ctx)
	if err == nil && check != nil {
		if err = check(); err != nil {
			c.Lease.Release()
		}
	}
	if err != nil {
		s.abandon(ctx, st)
		return nil, err
	}
	return c, nil
}

// awaitCheckpoint is a checkpoint of which every byte has arrived before its engine
// starts.
func (s *Stager) awaitCheckpoint(ctx context.Context, req replica.StageRequest, st *loader.Staging) (replica.Checkpoint, error) {
	c, err := s.awaitStaging(ctx, st, nil)
	if err != nil {
		return replica.Checkpoint{}, err
	}
	plan := st.PlanKey()
	st.Release() // the lease stays
	stop := s.readAhead(c)
	k := s.openCompileCache(ctx, req, c, plan)
	out := s.checkpointOf(c, k)
	if c.InPlace && c.Digest == "" {
		out.Digest = FolderID(ctx, req.Source, req.Dir)
	}
	release := out.Release
	out.Release = func() { stop(); release() }
	return out, nil
}

// FolderID identifies the present content of a source that is a folder of this machine, by
// the names, sizes and times of its files. It is "" for any other source, and where the
// folder cannot be listed.
func FolderID(ctx context.Context, src, base string) string {
	scheme, at, err := loader.Locate(src, base)
	if err != nil || scheme != "file" {
		return ""
	}
	plan, err := dir.Source{}.Plan(ctx, at, nil)
	if err != nil {
		return ""
	}
	h := sha256.New()
	for _, f := range plan.Files {
		fmt.Fprintf(h, "%q %d %q\n", f.Name, f.Size, f.Version)
	}
	return "folder:" + hex.EncodeToString(h.Sum(nil)[:16])
}

func (s *Stager) checkpointOf(c *loader.Checkpoint, k *compileCache) replica.Checkpoint {
	out := replica.Checkpoint{
		Path: c.Path, Bytes: functions.Bytes(c.Bytes), Digest: c.Digest, Cache: k.path(), CacheShared: k.shared(), Filled: k.onWarm(c),
		Release: func() { k.release(); c.Lease.Release() },
	}
	if !c.InPlace {
		out.Verify = func(ctx context.Context) error {
			err := s.loader.Verify(ctx, c.Digest)
			if kind := source.KindOf(err); kind == source.Digest || kind == source.Missing { // removed: it is staged again too
				return fmt.Errorf("%w: %w", replica.ErrDamaged, err)
			}
			return err
		}
	}
	return out
}

// abandon releases a staging that failed. If its replica was called off the download goes
// on at low priority instead, bounded by abandonedFor.
func (s *Stager) abandon(ctx context.Context, st *loader.Staging) {
	if !errors.Is(context.Cause(ctx), replica.ErrStartCancelled) || s.ctx.Err() != nil {
		st.Release()
		return
	}
	// The download goes on without a waiting replica, so that the next wake finds
	// them here.
	st.SetPriority(loader.Low)
	s.background.Go(func() {
		defer st.Release()
		ctx, cancel := context.WithTimeout(s.ctx, abandonedFor)
		defer cancel()
		if c, err := st.Wait(ctx); err == nil {
			c.Lease.Release()
		}
	})
}

// readAheadFor bounds the reading ahead for one start; an engine that boots for longer
// reads for itself.
const readAheadFor = 10 * time.Minute

// readAhead has the kernel read a checkpoint from the disk while its engine's process
// starts. stop ends that early.
func (s *Stager) readAhead(c *loader.Checkpoint) (stop func()) {
	ctx, cancel := context.WithTimeout(s.ctx, readAheadFor)
	s.background.Go(func() {
		defer cancel()
		nodestore.ReadIntoMemory(ctx, c)
	})
	return cancel
}
