package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Source is where files come from. Both methods are called concurrently, make
// one attempt, and answer with *source.Error; the loader retries those of kind
// Unavailable and Malformed and gives up on all others.
type Source interface {
	// Plan lists what is at location, with the version of each file. A
	// location with nothing at it is an error of kind NotFound. It lists what
	// will not be staged too, by name; what is on the list of source.Allowed, or
	// named by also, it looks at: a link, a device or a body that cannot be read
	// as it is are errors then.
	Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error)
	// Read returns exactly length bytes of file from offset, in the version
	// the plan named, or fails: kind Changed when that version is no more. The
	// caller closes the body; ctx bounds the reading of it too.
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

// BlockReader is a Source that fills a buffer itself. It is asked for ranges
// that are small enough to be held at once (a config, the rest of a block);
// everything else is read from the body of Read, in pieces of at least 256 KiB
// that should reach the socket as they are: a layer that buffers between costs
// one copy of every byte.
type BlockReader interface {
	Source
	// ReadInto fills b with the file's bytes from offset, under the law of
	// Read.
	ReadInto(ctx context.Context, file source.File, offset int64, b []byte) error
}

// Refresher is a Source whose credentials can be had anew. It is called once
// in a staging, when a range is denied after the plan was not.
type Refresher interface {
	Source
	Refresh(ctx context.Context, location string) error
}

// Options of a loader.
type Options struct {
	// Store may be nil: then only folders on this machine can be used.
	Store *store.Store
	// Sources by scheme ("file", "az", "https").
	Sources map[string]Source
	// Log may be nil.
	Log *slog.Logger
	// Block is the bytes that a checksum speaks of and that a reader waits for;
	// 8 MiB when 0. One request brings one block or several. Nodes that lend each
	// other blocks must agree on it.
	Block int64
	// Parallel is the most ranges in flight from one source, over all stagings
	// of this loader; 64 when 0. How many there are is found while running.
	Parallel int
	// DigestLast begins the pass for the digests of whole files when the last
	// block has landed, in place of running it behind the front: a measurement
	// can tell the cost of one from that of the other.
	DigestLast bool
	// Retry bounds what is done about a source that fails for a while.
	Retry Retry
	// Links is the file that keeps what was found out about the links to sources
	// from one process to the next; "" keeps it as long as the loader.
	Links string
	// Peers may be nil: then every byte comes from the source.
	Peers Peers
}

// Retry bounds the attempts on one range.
type Retry struct {
	// Attempts, the first included; 8 when 0. An answer that makes no sense
	// (kind Malformed) gets three at most.
	Attempts int
	// Base and Max of the wait before the next attempt, which is drawn evenly
	// from nothing to the bound (full jitter); 200 ms and 15 s when 0. A
	// Retry-After is waited out, up to a minute.
	Base, Max time.Duration
	// Idle is how long a body may bring no byte; 20 s when 0.
	Idle time.Duration
}

// Loader stages. Its methods may be called concurrently.
type Loader struct {
	o         Options
	buffers   *bufferPool
	digests   digestCache
	linkStats linkStatsFile

	counts counters

	mu           sync.Mutex        // guards the fields below
	skippedNotes map[string]string // what of a place stays where it is, as it was told last
	limiters     map[string]*sourceLimiter
	jobs         map[string]*stagingJob
	closed       bool
	wg           sync.WaitGroup
}

// New returns a loader. It starts nothing; Close ends what Stage started.
func New(o Options) *Loader {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Block = orDefault(o.Block, 8<<20)
	o.Parallel = orDefault(o.Parallel, maxRanges)
	o.Retry.Attempts = orDefault(o.Retry.Attempts, 8)
	o.Retry.Base = orDefault(o.Retry.Base, 200*time.Millisecond)
	o.Retry.Max = orDefault(o.Retry.Max, 15*time.Second)
	o.Retry.Idle = orDefault(o.Retry.Idle, 20*time.Second)
	return &Loader{o: o, buffers: newBufferPool(max(o.Parallel, maxRanges)+urgentLanes+maxPeerRequests, pieceSize), linkStats: linkStatsFile{file: o.Links, now: time.Now}, limiters: make(map[string]*sourceLimiter), jobs: make(map[string]*stagingJob), skippedNotes: make(map[string]string)}
}

// What all stagings together hold in memory: a piece for each of this many
// ranges, from however many sources.
const (
	maxRanges = 64
	pieceSize = 1 << 20
)

// sourceHost is whoever serves a location.
func sourceHost(location string) string {
	scheme, rest, ok := strings.Cut(location, "://")
	if !ok {
		return location
	}
	name, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + name
}

// limiter is the way to a location, by whoever serves it.
func (l *Loader) limiter(location string) *sourceLimiter {
	host := sourceHost(location)
	was, _ := l.linkStats.get(host)
	l.mu.Lock()
	defer l.mu.Unlock()
	lim := l.limiters[host]
	if lim == nil {
		if len(l.limiters) >= maxLimiters {
			clear(l.limiters)
		}
		lim = newSourceLimiter(l.o.Parallel, was)
		l.limiters[host] = lim
	}
	return lim
}

// maxLimiters bounds what is remembered of sources; who stages keeps his.
const maxLimiters = 1000

func orDefault[T int | int64 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// Priority of a staging among the others.
type Priority int

// Somebody waits for it, or nobody does.
const (
	High Priority = iota
	Low
)

// StageOptions of one Stage.
type StageOptions struct {
	// Base is the folder of the model file, for a relative source.
	Base string
	// Digest that the checkpoint must have, "sha256:…"; empty for whatever is
	// there. A checkpoint of this digest that is in the store is used without
	// asking the source.
	Digest string
	// Need names files that must be there, such as config.json.
	Need []string
	// Files are patterns of files that are staged beside those that always are.
	Files source.Globs
	// Priority to begin with.
	Priority Priority
}

// Stage begins to bring source here, or joins who does already. It returns at
// once; errors are those of the source's spelling. The caller releases the
// staging. ctx is for this call only: the staging ends when its last holder
// has released it.
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
		return nil, &source.Error{Kind: source.BadSource, Source: location, What: fmt.Sprintf("the scheme %q is not known here", scheme),
			Fix: "known are " + strings.Join(slices.Sorted(maps.Keys(l.o.Sources)), ", ")}
	}
	if _, here := from.(InPlace); !here && l.o.Store == nil {
		return nil, &source.Error{Kind: source.BadSource, Source: location, What: "there is no store to stage it into"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	place := store.Place(location, o.Files)
	key := store.Key(place, o.Digest)
	j := l.jobs[key]
	if j == nil || !j.join() {
		// Detached: who asked first may leave while others wait, and bytes that
		// are on their way are wanted by the next request too. Release and
		// Close end it.
		run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		j = &stagingJob{loader: l, key: key, scheme: scheme, location: location, place: place, patterns: slices.Clone(o.Files), digest: o.Digest, source: from, cancel: cancel,
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
	return newStaging(j, o), nil
}

var errClosed = errors.New("the loader is closed")

// Close calls off all stagings and waits for their end. What has arrived stays
// for the next process.
func (l *Loader) Close() {
	l.mu.Lock()
	l.closed = true
	for _, j := range l.jobs {
		j.cancel(errClosed)
	}
	l.mu.Unlock()
	l.wg.Wait()
}
