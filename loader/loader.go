package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/rangelimit"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Source is where files come from. Its methods are safe for concurrent use, make one
// attempt, and fail with *source.Error; the loader retries kinds Unavailable and
// Malformed and gives up on all others.
type Source interface {
	// Plan lists the files at location, each with its version. A location without
	// files is an error of kind NotFound. Files that will not be staged are listed by
	// name only; a file of source.Allowed, or one that also matches, is checked: a
	// link, a device or an encoded body is an error.
	Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error)
	// Read returns exactly length bytes of file from offset, in the version of the
	// plan, or fails: with kind Changed if that version is gone. The caller closes the
	// body; ctx bounds reading it too.
	Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error)
}

// InPlace is a Source whose files can be used where they are.
type InPlace interface {
	Source
	// Folder is the path of location.
	Folder(location string) string
	// Open opens a file of a plan.
	Open(file source.File) (*os.File, error)
}

// BlockReader is a Source that fills a buffer itself, for ranges small enough for one
// buffer (a config, the rest of a block). All others are read from the body of Read,
// in pieces of at least 256 KiB: a layer in between that buffers costs one copy of
// every byte.
type BlockReader interface {
	Source
	// ReadInto fills b with the file's bytes from offset. The rules of Read hold.
	ReadInto(ctx context.Context, file source.File, offset int64, b []byte) error
}

// Refresher is a Source that can look for new credentials. Refresh is called once in a
// staging, when a range is denied after the listing was not.
type Refresher interface {
	Source
	Refresh(ctx context.Context, location string) error
}

type Options struct {
	// Store may be nil: then only folders on this machine can be used.
	Store *store.Store
	// Sources by scheme ("file", "az", "https").
	Sources map[string]Source
	// Log may be nil.
	Log *slog.Logger
	// Block is the unit of checksums and of waiting, in bytes; 8 MiB if 0. One request
	// may bring several. Nodes that exchange blocks must agree on it.
	Block int64
	// Parallel bounds the ranges in flight from one source, over all stagings of this
	// loader; 64 if 0. The number in use is found at run time.
	Parallel int
	// Retry bounds the attempts on a failing source.
	Retry Retry
	// Links is the file that keeps what was measured of each source for the next
	// process; "" keeps it in memory only.
	Links string
	// Peers may be nil: then every byte comes from the source.
	Peers Peers
}

// Retry bounds the attempts on one range.
type Retry struct {
	// Attempts includes the first, and bounds those at which the source could not be
	// reached. Of a range it is not bounded if 0: the deadline of the staging's holders
	// ends it, or Patience. Malformed answers are retried twice at most.
	Attempts int
	// Patience is how long a source may bring no byte of a range, or no listing because
	// it asks for fewer requests; an hour if 0.
	Patience time.Duration
	// Base and Max bound the pause before the next attempt, drawn evenly from 0 to the
	// bound (full jitter); 200 ms and 15 s if 0. A Retry-After is respected, up to a
	// minute.
	Base, Max time.Duration
	// Idle is how long a body may bring no byte; 20 s if 0.
	Idle time.Duration
}

// Loader stages checkpoints. Its methods are safe for concurrent use.
type Loader struct {
	o       Options
	buffers *bufferPool
	digests digestCache
	links   *rangelimit.LinkFile

	counts counters

	mu           sync.Mutex           // guards the fields below
	skippedNotes map[string]string    // by place: the note on files not staged that was logged last
	silent       map[string]time.Time // by host: when it gave no listing in time, of at most maxLimiters
	limiters     map[string]*rangelimit.Limiter
	jobs         map[string]*stagingJob
	closed       bool
	wg           sync.WaitGroup
}

// New returns a loader. It starts nothing; Close ends what Stage started.
func New(o Options) *Loader {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Block = cmp.Or(o.Block, 8<<20)
	o.Parallel = cmp.Or(o.Parallel, maxRanges)
	o.Retry.Attempts = cmp.Or(o.Retry.Attempts, math.MaxInt)
	o.Retry.Patience = cmp.Or(o.Retry.Patience, time.Hour)
	o.Retry.Base = cmp.Or(o.Retry.Base, 200*time.Millisecond)
	o.Retry.Max = cmp.Or(o.Retry.Max, 15*time.Second)
	o.Retry.Idle = cmp.Or(o.Retry.Idle, 20*time.Second)
	slots := make(chan struct{}, max(o.Parallel, maxRanges)+rangelimit.UrgentExtra+maxPeerRequests)
	return &Loader{
		o: o, buffers: &bufferPool{size: pieceSize, slots: slots},
		links: rangelimit.NewLinkFile(o.Links), limiters: make(map[string]*rangelimit.Limiter),
		jobs: make(map[string]*stagingJob), skippedNotes: make(map[string]string), silent: make(map[string]time.Time),
	}
}

// Memory of all stagings together: one piece for each of maxRanges ranges.
const (
	maxRanges = 64
	pieceSize = 1 << 20
)

func sourceHost(location string) string {
	scheme, remaining, ok := strings.Cut(location, "://")
	if !ok {
		return location
	}
	name, _, _ := strings.Cut(remaining, "/")
	return scheme + "://" + name
}

func (l *Loader) limiter(location string) *rangelimit.Limiter {
	host := sourceHost(location)
	was, _ := l.links.Get(host)
	l.mu.Lock()
	defer l.mu.Unlock()
	lim := l.limiters[host]
	if lim == nil {
		if len(l.limiters) >= maxLimiters {
			clear(l.limiters)
		}
		lim = rangelimit.New(l.o.Parallel, was)
		l.limiters[host] = lim
	}
	return lim
}

// maxLimiters bounds the map of limiters. Running stagings keep theirs when it is
// cleared.
const maxLimiters = 1000

type Priority = rangelimit.Priority

// High: a request waits for the staging. Low: none does.
const (
	High = rangelimit.High
	Low  = rangelimit.Low
)

type StageOptions struct {
	// Base is the folder of the model file, for a relative source.
	Base string
	// Digest is the demanded digest of the checkpoint, "sha256:…", or empty. A
	// checkpoint of this digest in the store is used without asking the source.
	Digest string
	// Files are patterns of files to stage beside those of source.Allowed.
	Files    source.Globs
	Priority Priority
}

// Stage starts to stage src, or joins a running staging of it. It returns at once; its
// errors are about the spelling of src. The caller releases the staging. ctx bounds
// this call only: the staging ends when its last holder has released it.
func (l *Loader) Stage(ctx context.Context, src string, o StageOptions) (*Staging, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scheme, location, err := Locate(src, o.Base)
	if err != nil {
		return nil, err
	}
	if o.Digest != "" {
		if _, err := store.ParseDigest(o.Digest); err != nil {
			return nil, err
		}
	}
	from, ok := l.o.Sources[scheme]
	if !ok {
		if message, hint := functions.CheckSource(src); message != "" {
			return nil, source.Fail(source.BadSource, "source: "+message, hint)
		}
		return nil, &source.Error{Kind: source.BadSource, Source: location, Detail: fmt.Sprintf("the scheme %q is not known here", scheme),
			Fix: "known are " + strings.Join(slices.Sorted(maps.Keys(l.o.Sources)), ", ")}
	}
	if _, isInPlace := from.(InPlace); !isInPlace && l.o.Store == nil {
		return nil, &source.Error{Kind: source.BadSource, Source: location, Detail: "there is no store to stage it into"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	locationKey := store.LocationKey(location, o.Files)
	key := store.Key(locationKey, o.Digest)
	j := l.jobs[key]
	if j == nil || !j.join() {
		// Detached: the first caller may leave while others wait, and bytes on
		// their way serve the next request too. Release and
		// Close end it.
		run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		j = &stagingJob{loader: l, key: key, locationKey: locationKey, patterns: slices.Clone(o.Files), digest: o.Digest, cancel: cancel,
			from:    stagingSource{Source: from, scheme: scheme, location: location, log: l.o.Log.With("source", location)},
			holders: 1, progress: newProgressFeed(), planned: make(chan struct{}), done: make(chan struct{})}
		l.jobs[key] = j
		l.wg.Go(func() {
			j.run(run)
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.jobs[key] == j {
				delete(l.jobs, key)
			}
			if len(l.jobs) == 0 {
				l.buffers.trim()
			}
		})
	}
	j.priorities.add(o.Priority, +1)
	return &Staging{job: j, priority: o.Priority}, nil
}

// Verify reads a checkpoint of the store again. A damaged file is an error of kind Digest;
// it is removed, and the next Stage fetches it again.
func (l *Loader) Verify(ctx context.Context, digest string) error {
	if l.o.Store == nil {
		return &source.Error{Kind: source.Missing, Detail: "there is no store"}
	}
	return l.o.Store.Verify(ctx, digest)
}

var errClosed = errors.New("the loader is closed")

// Close cancels all stagings and waits for their end. Bytes that arrived stay for the
// next process.
func (l *Loader) Close() {
	l.mu.Lock()
	l.closed = true
	for _, j := range l.jobs {
		j.cancel(errClosed)
	}
	l.mu.Unlock()
	l.wg.Wait()
}
