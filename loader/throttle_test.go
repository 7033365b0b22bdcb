package loader_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
)

// throttled is a source that asks for fewer requests, or is not reached, until a time.
type throttled struct {
	copied
	listing, ranges time.Time
	busy            bool
}

func (t throttled) fault(until time.Time) error {
	if time.Now().Before(until) {
		return &source.Error{Kind: source.Unavailable, Detail: "503", Busy: t.busy}
	}
	return nil
}

func (t throttled) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	if err := t.fault(t.listing); err != nil {
		return source.Plan{}, err
	}
	return t.copied.Plan(ctx, location, also)
}

func (t throttled) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	if err := t.fault(t.ranges); err != nil {
		return nil, err
	}
	return t.copied.Read(ctx, f, offset, length)
}

// A source that throttles or fails for minutes does not end a load: its holders do, and
// the patience of the loader where they have no deadline.
func TestThrottledForLong(t *testing.T) {
	for _, tc := range []struct {
		name            string
		listing, ranges time.Duration
		busy, good      bool
		ends            time.Duration // of a failure, at the latest
	}{
		{"ranges throttled", 0, 30 * time.Second, true, true, 0},
		{"ranges throttled for long", 0, 40 * time.Minute, true, true, 0},
		{"ranges not reached", 0, 5 * time.Minute, false, true, 0},
		{"listing throttled", 5 * time.Minute, 6 * time.Minute, true, true, 0},
		{"listing not reached", 5 * time.Minute, 0, false, false, time.Minute},
		{"never", 0, 24 * time.Hour, true, false, 2 * time.Hour},
		{"listing never", 24 * time.Hour, 0, true, false, 2 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder, st := model(t), openStore(t, store.Options{})
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				from := throttled{copied{dir.Source{}}, began.Add(tc.listing), began.Add(tc.ranges), tc.busy}
				l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": from}})
				defer l.Close()
				s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Release()
				c, err := s.Wait(t.Context())
				if c != nil {
					c.Lease.Release()
				}
				switch took := time.Since(began); {
				case tc.good && err != nil:
					t.Errorf("after %v: %v", took, err)
				case !tc.good && (source.KindOf(err) != source.Unavailable || took > tc.ends):
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}
