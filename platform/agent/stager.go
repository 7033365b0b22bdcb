package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// Stager gives replicas the loader. A staging that nobody waits for any more
// goes on at low priority, until it is done, afterFor is over, or Close.
type Stager struct {
	loader *loader.Loader
	o      StagerOptions
	ctx    context.Context
	cancel context.CancelFunc
	after  sync.WaitGroup
	early  early
}

// StagerOptions are how a stager works. The zero value stages whole checkpoints.
type StagerOptions struct {
	// Arriving is the agent's folder for checkpoints that are still arriving;
	// "" shows none before it is here.
	Arriving string
	// Early is how many bytes must be missing for a start before the last of
	// them: below, a mount costs more than it saves.
	Early functions.Bytes
	// NoMount: nothing is mounted, as where there is no FUSE.
	NoMount bool
	// Caches of what engines compile; nil keeps none. Trust has them fetched
	// from and published to the models' sources, too.
	Caches *enginecache.Caches
	Trust  bool
	// Sources by scheme, the loader's own; for Trust.
	Sources map[string]loader.Source
	Log     *slog.Logger // may be nil
}

// afterFor bounds a staging whose model was called off.
const afterFor = time.Hour

// NewStager is the stager of a loader. Close it before the loader.
func NewStager(l *loader.Loader, o StagerOptions) *Stager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Stager{loader: l, o: o, ctx: ctx, cancel: cancel}
}

// Close calls off what goes on by itself, and shows nothing any more.
func (s *Stager) Close() {
	s.cancel()
	s.after.Wait()
	s.early.close()
}

// Stage brings a source here. It is a replica.Stager.
func (s *Stager) Stage(ctx context.Context, w replica.StageRequest, progress func(have, whole functions.Bytes)) (replica.Checkpoint, error) {
	st, err := s.begin(ctx, w)
	if err != nil {
		return replica.Checkpoint{}, err
	}
	defer tell(st, progress)()
	return s.whole(ctx, w, st)
}

func (s *Stager) begin(ctx context.Context, w replica.StageRequest) (*loader.Staging, error) {
	return s.loader.Stage(ctx, w.Source, loader.StageOptions{Base: w.Dir, Digest: w.Digest, Files: w.Files})
}

// tell passes progress on until the function it returns was called.
func tell(st *loader.Staging, progress func(have, whole functions.Bytes)) (stop func()) {
	events, unsubscribe := st.Events()
	told := make(chan struct{})
	go func() {
		defer close(told)
		for p := range events {
			progress(functions.Bytes(p.Done), functions.Bytes(p.Total))
		}
	}()
	return func() { unsubscribe(); <-told }
}

// wait waits for all of a staging, and lets go of it where there is none. check,
// which may be nil, has the last word.
func (s *Stager) wait(ctx context.Context, st *loader.Staging, check func() error) (*loader.Checkpoint, error) {
	c, err := st.Wait(ctx)
	if err == nil && check != nil {
		if err = check(); err != nil {
			c.Lease.Release()
		}
	}
	if err != nil {
		s.drop(ctx, st)
		return nil, err
	}
	return c, nil
}

// whole is a checkpoint of which every byte is here before its engine starts.
func (s *Stager) whole(ctx context.Context, w replica.StageRequest, st *loader.Staging) (replica.Checkpoint, error) {
	c, err := s.wait(ctx, st, nil)
	if err != nil {
		return replica.Checkpoint{}, err
	}
	plan := st.Plan()
	st.Release() // the lease stays
	stop := s.readAhead(c)
	k := s.cacheOf(ctx, w, c, plan)
	out := staged(c, k)
	release := out.Release
	out.Release = func() { stop(); release() }
	return out, nil
}

// staged is a checkpoint as a replica knows it.
func staged(c *loader.Checkpoint, k *compiled) replica.Checkpoint {
	return replica.Checkpoint{
		Path: c.Path, Bytes: functions.Bytes(c.Bytes), Digest: c.Digest, Cache: k.path(), Filled: k.filled(c),
		Release: func() { k.release(); c.Lease.Release() },
	}
}

// drop lets go of a staging that has not ended well, or not yet.
func (s *Stager) drop(ctx context.Context, st *loader.Staging) {
	if !errors.Is(context.Cause(ctx), replica.ErrStartCancelled) || s.ctx.Err() != nil {
		st.Release()
		return
	}
	// Its bytes are finished with nobody waiting, so that the next wake finds
	// them here.
	st.SetPriority(loader.Low)
	s.after.Go(func() {
		defer st.Release()
		ctx, cancel := context.WithTimeout(s.ctx, afterFor)
		defer cancel()
		if c, err := st.Wait(ctx); err == nil {
			c.Lease.Release()
		}
	})
}
