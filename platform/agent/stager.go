package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// Stager gives replicas the loader. A staging that nobody waits for any more
// goes on at low priority, until it is done, afterFor is over, or Close.
type Stager struct {
	loader *loader.Loader
	ctx    context.Context
	cancel context.CancelFunc
	after  sync.WaitGroup
}

// afterFor bounds a staging whose model was called off.
const afterFor = time.Hour

// NewStager is the stager of a loader. Close it before the loader.
func NewStager(l *loader.Loader) *Stager {
	ctx, cancel := context.WithCancel(context.Background())
	return &Stager{loader: l, ctx: ctx, cancel: cancel}
}

// Close calls off what goes on by itself.
func (s *Stager) Close() {
	s.cancel()
	s.after.Wait()
}

// Stage brings a source here. It is a replica.Stager.
func (s *Stager) Stage(ctx context.Context, w replica.Want, progress func(have, whole functions.Bytes)) (replica.Checkpoint, error) {
	st, err := s.loader.Stage(ctx, w.Source, loader.StageOptions{Base: w.Dir, Digest: w.Digest})
	if err != nil {
		return replica.Checkpoint{}, err
	}
	events, stop := st.Events()
	told := make(chan struct{})
	go func() {
		defer close(told)
		for p := range events {
			progress(functions.Bytes(p.Done), functions.Bytes(p.Total))
		}
	}()
	c, err := st.Wait(ctx)
	stop()
	<-told
	if err != nil {
		if errors.Is(context.Cause(ctx), replica.ErrCalledOff) && s.ctx.Err() == nil {
			s.goOn(st)
		} else {
			st.Release()
		}
		return replica.Checkpoint{}, err
	}
	st.Release() // the lease stays
	return replica.Checkpoint{Path: c.Path, Bytes: functions.Bytes(c.Bytes), Digest: c.Digest, Release: c.Lease.Release}, nil
}

// goOn finishes a staging that has nobody waiting, so that the next wake finds
// its bytes here.
func (s *Stager) goOn(st *loader.Staging) {
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
