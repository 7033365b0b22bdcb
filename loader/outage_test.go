package loader_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
)

// unlisted is a source that gives no list: fail returns why, for each try.
type unlisted struct {
	loader.Source
	fail func(ctx context.Context) error
}

func (u unlisted) Plan(ctx context.Context, at string, also source.Globs) (source.Plan, error) {
	if err := u.fail(ctx); err != nil {
		return source.Plan{}, err
	}
	return u.Source.Plan(ctx, at, also)
}

// TestOutageOfAStagedSource: a source whose files were staged and that gives no list any more
// does not stop a start; its files are used within a bounded wait, and the progress says why.
func TestOutageOfAStagedSource(t *testing.T) {
	answers := func(e source.Error) func(context.Context) error {
		return func(context.Context) error { answer := e; return &answer }
	}
	for _, tc := range []struct {
		name   string
		fail   func(context.Context) error
		within time.Duration
		words  string // "": the staging fails
	}{
		{"429 for a minute", answers(source.Error{Kind: source.Unavailable, Detail: "answered 429", Busy: true, RetryAfter: time.Minute}), 0, "429"},
		{"503", answers(source.Error{Kind: source.Unavailable, Detail: "answered 503", Busy: true}), time.Second, "503"},
		{"no DNS", answers(source.Error{Kind: source.Unavailable, Detail: "DNS knows no h"}), time.Second, "DNS knows no h"},
		{"an expired key", answers(source.Error{Kind: source.Denied, Detail: "answered 401"}), 0, "401"},
		{"an expired certificate", answers(source.Error{Kind: source.Refused, Detail: "has expired"}), 0, "has expired"},
		{"a page in place of the list", answers(source.Error{Kind: source.Malformed, Detail: "is not JSON"}), time.Second, "is not JSON"},
		{"silence", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, 10 * time.Second, "no list of its files within 10s"},
		{"files removed", answers(source.Error{Kind: source.NotFound, Detail: "answered 404"}), 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := model(t)
			st := openStore(t, store.Options{})
			first := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
			want, _, err := stageWithProgress(t, first, folder)
			first.Close()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": unlisted{copied{dir.Source{}}, tc.fail}}})
				defer l.Close()
				began := time.Now()
				c, p, err := stageWithProgress(t, l, folder)
				if took := time.Since(began); took > tc.within {
					t.Errorf("took %s", took)
				}
				if tc.words == "" {
					if source.KindOf(err) != source.NotFound {
						t.Errorf("%+v, %v", c, err)
					}
					return
				}
				if err != nil || c.Digest != want.Digest {
					t.Fatalf("%+v, %v", c, err)
				}
				if !strings.Contains(p.Problem, "those staged before are used") || !strings.Contains(p.Problem, tc.words) {
					t.Errorf("the problem is %q", p.Problem)
				}
			})
		})
	}
}

// TestSilenceIsRemembered: after one silent answer a start waits a second for the list, until the
// source answers or some minutes have passed.
func TestSilenceIsRemembered(t *testing.T) {
	folder := model(t)
	st := openStore(t, store.Options{})
	first := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	if _, _, err := stageWithProgress(t, first, folder); err != nil {
		t.Fatal(err)
	}
	first.Close()
	synctest.Test(t, func(t *testing.T) {
		var silence atomic.Int64
		late := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Duration(silence.Load())):
				return nil
			}
		}
		l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": unlisted{copied{dir.Source{}}, late}}})
		defer l.Close()
		for i, step := range []struct{ pause, silence, took time.Duration }{
			{0, time.Hour, 10 * time.Second}, {time.Minute, time.Hour, time.Second}, {time.Minute, 2 * time.Second, time.Second},
			{time.Minute, 500 * time.Millisecond, 500 * time.Millisecond}, {0, 2 * time.Second, 2 * time.Second},
			{0, time.Hour, 10 * time.Second}, {0, time.Hour, time.Second}, {10 * time.Minute, time.Hour, 10 * time.Second},
		} {
			time.Sleep(step.pause)
			silence.Store(int64(step.silence))
			began := time.Now()
			if _, _, err := stageWithProgress(t, l, folder); err != nil || time.Since(began) != step.took {
				t.Errorf("step %d took %s, %v; want %s", i, time.Since(began), err, step.took)
			}
		}
	})
}

// stageWithProgress stages a folder and returns the last progress.
func stageWithProgress(t *testing.T, l *loader.Loader, folder string) (*loader.Checkpoint, loader.Progress, error) {
	t.Helper()
	s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err == nil {
		c.Lease.Release()
	}
	return c, s.Progress(), err
}

// TestProblemWhileASourceIsAskedAgain: while a source that was never staged is asked again,
// for its list or its bytes, the progress says why, until it answers.
func TestProblemWhileASourceIsAskedAgain(t *testing.T) {
	folder := model(t)
	st := openStore(t, store.Options{})
	synctest.Test(t, func(t *testing.T) {
		var listed, served atomic.Bool
		busy := func(answers *atomic.Bool) func(context.Context) error {
			return func(context.Context) error {
				if answers.Load() {
					return nil
				}
				return &source.Error{Kind: source.Unavailable, Detail: "answered 429", Busy: true, RetryAfter: time.Minute}
			}
		}
		from := unlisted{unread{copied{dir.Source{}}, busy(&served)}, busy(&listed)}
		l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": from}})
		defer l.Close()
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		for _, step := range []struct {
			state   loader.State
			answers *atomic.Bool
		}{{loader.Planning, &listed}, {loader.Fetching, &served}} {
			time.Sleep(5 * time.Minute)
			p := s.Progress()
			if p.State != step.state || !strings.HasPrefix(p.Problem, "the source is asked again: ") || !strings.Contains(p.Problem, "429") {
				t.Errorf("%+v", p)
			}
			step.answers.Store(true)
		}
		c, err := s.Wait(t.Context())
		if p := s.Progress(); err != nil || p.Problem != "" {
			t.Errorf("%+v, %v", p, err)
		}
		c.Lease.Release()
	})
}

// unread is a source whose ranges fail: fail returns why, for each try.
type unread struct {
	loader.Source
	fail func(ctx context.Context) error
}

func (u unread) Read(ctx context.Context, f source.File, off, n int64) (io.ReadCloser, error) {
	if err := u.fail(ctx); err != nil {
		return nil, err
	}
	return u.Source.Read(ctx, f, off, n)
}
