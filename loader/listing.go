package loader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/source"
)

// stagingSource is where the files of one staging come from.
type stagingSource struct {
	Source
	scheme, location string
	log              *slog.Logger // names the location

	mu        sync.Mutex // held while credentials are renewed
	refreshed time.Time  // when the source got new ones; zero before
}

// refresh renews the source's credentials, once in a staging. It returns
// true if another attempt may succeed: the one that began at began used the old ones.
func (s *stagingSource) refresh(ctx context.Context, began time.Time) bool {
	from, ok := s.Source.(Refresher)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refreshed.IsZero() {
		return began.Before(s.refreshed)
	}
	// Requests with the old credentials may still fail later.
	defer func() { s.refreshed = time.Now() }()
	if err := from.Refresh(ctx, s.location); err != nil {
		s.log.Warn("credentials cannot be renewed", "err", err)
		return false
	}
	s.log.Info("denied in the middle, credentials renewed")
	return true
}

// listingWait bounds the listing of a source whose files were staged before: they are used
// if it does not come. After one that failed slowly, silentWait bounds those of that host for
// silentFor.
const (
	listingWait = 10 * time.Second
	silentWait  = time.Second
	silentFor   = 10 * time.Minute
)

// waitForListing returns the bound of a listing of staged files, and what notes its end.
func (j *stagingJob) waitForListing() (bound time.Duration, ended func(error)) {
	l, host, began := j.loader, sourceHost(j.from.location), time.Now()
	if j.from.scheme == "hf" { // one hub for all
		host = j.from.scheme
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	bound = listingWait
	if time.Since(l.silent[host]) < silentFor {
		bound = silentWait
	}
	return bound, func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			delete(l.silent, host)
		case bound == listingWait && time.Since(began) >= silentWait:
			if len(l.silent) >= maxLimiters {
				clear(l.silent)
			}
			l.silent[host] = time.Now()
		}
	}
}

// stagedBefore returns the digest of the checkpoint that the source led to last, if it is in
// the store; "" if not, or if another digest is demanded.
func (j *stagingJob) stagedBefore() string {
	if j.loader.o.Store == nil || j.digest != "" {
		return ""
	}
	return j.loader.o.Store.Plans.LastDigest(j.locationKey)
}

// listSource lists the source, with retries, and checks the listing.
func (j *stagingJob) listSource(ctx context.Context) ([]source.File, error) {
	listing, err := j.askSource(ctx)
	if err != nil {
		return nil, err
	}
	return j.checkListing(listing)
}

// askSource lists the source, with retries: fewer than for a range, for no byte has been
// downloaded yet, and at most for waitForListing if its files were staged before.
func (j *stagingJob) askSource(ctx context.Context) (listing source.Plan, err error) {
	attempts, patient := min(4, j.loader.o.Retry.Attempts), j.loader.o.Retry.Attempts == math.MaxInt
	if j.stagedBefore() != "" {
		attempts, patient = min(2, attempts), false
		wait, ended := j.waitForListing()
		defer func() { ended(err) }()
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, wait,
			source.Fail(source.Unavailable, fmt.Sprintf("it gave no list of its files within %s", wait), ""))
		defer cancel()
	}
	err = j.retry(ctx, attempts, patient, func() (err error) {
		listing, err = j.from.Plan(ctx, j.from.location, j.patterns)
		return err
	})
	return listing, source.WithSource(err, j.from.location)
}

// stagedInstead returns the checkpoint that the source led to last, for a source that gives no
// list because of err: an outage, or a credential that has expired, must not stop models whose
// files are here. It is nil without one, and where the source no longer has the files.
func (j *stagingJob) stagedInstead(err error) *Checkpoint {
	switch source.KindOf(err) {
	case source.Unavailable, source.Malformed, source.Denied, source.Refused:
	default:
		return nil
	}
	c, storeErr := j.fromStore(j.stagedBefore())
	if storeErr != nil || c == nil {
		return nil
	}
	j.from.log.Warn("the source gives no list of its files, those staged before are used", "digest", c.Digest, "err", err)
	j.progress.update(func(p *Progress) {
		p.Problem = "the source gave no list of its files, those staged before are used: " + err.Error()
	})
	return c
}

// checkListing returns the files of a listing that are staged.
func (j *stagingJob) checkListing(listing source.Plan) ([]source.File, error) {
	files, left, err := selectFiles(j.from.location, listing, j.patterns)
	if err == nil {
		j.noteSkipped(listing, left)
	}
	return files, err
}

// noteSkipped logs once which files of a location are not staged, and how to stage
// them; in a folder used in place, only those that cannot be used.
func (j *stagingJob) noteSkipped(listing source.Plan, left []source.LeftOut) {
	var names []string
	if _, isInPlace := j.from.Source.(InPlace); !isInPlace {
		names = j.patterns.Skipped(listing.Files)
	}
	note := notStaged(names, left)
	if note == "" {
		return
	}
	level := slog.LevelInfo
	if len(left) > 0 {
		level = slog.LevelWarn
	}
	j.progress.update(func(p *Progress) { p.Note = note })
	j.loader.mu.Lock()
	reported := j.loader.skippedNotes[j.locationKey] == note
	if len(j.loader.skippedNotes) >= maxLimiters {
		clear(j.loader.skippedNotes)
	}
	j.loader.skippedNotes[j.locationKey] = note
	j.loader.mu.Unlock()
	if !reported {
		j.from.log.Log(context.Background(), level, note)
	}
}

// notStaged is the note on files that are not staged, "" for none: those that spec.files
// would stage, and those that cannot be.
func notStaged(names []string, left []source.LeftOut) string {
	const maximum = 5
	var notes []string
	if len(left) > 0 {
		parts := functions.ConvertAll(left[:min(len(left), maximum)], func(l source.LeftOut) string {
			return fmt.Sprintf("%q %s", functions.Clip(l.Name), l.Reason)
		})
		if len(left) > maximum {
			parts = append(parts, fmt.Sprintf("and %d more", len(left)-maximum))
		}
		notes = append(notes, "left out: "+strings.Join(parts, "; "))
	}
	if len(names) > 0 {
		noun, more := "files", ""
		if len(names) == 1 {
			noun = "file"
		}
		if len(names) > maximum {
			more = ", …"
		}
		notes = append(notes, fmt.Sprintf("%d %s not staged: %s%s; spec.files stages them", len(names), noun,
			strings.Join(names[:min(maximum, len(names))], ", "), more))
	}
	return strings.Join(notes, "; ")
}

func selectFiles(location string, listing source.Plan, also source.Globs) ([]source.File, []source.LeftOut, error) {
	files, left, err := source.Select(location, listing.Files, also)
	if err != nil {
		return nil, nil, err
	}
	left = append(left, listing.Left...)
	if len(files) > 0 && slices.Contains(also, "*") {
		return files, left, nil // a program's own data: whatever it is
	}
	if slices.ContainsFunc(files, func(f source.File) bool { return source.Weights(f.Name) || also.Match(f.Name) && carriesCode(f.Name) }) {
		return files, left, nil
	}
	for _, file := range listing.Files {
		if carriesCode(file.Name) {
			return nil, nil, source.Fail(source.Refused, "is the only kind of weights here, and a format that can carry code",
				source.WithoutWeights([]string{file.Name}, "convert it to safetensors; who trusts it names it in spec.files")).At(location, file.Name)
		}
	}
	for _, file := range listing.Files {
		if folder := path.Dir(file.Name); source.Weights(folder) {
			return nil, nil, source.Fail(source.Missing, "is a folder, and engines read a file of that name",
				"point source at the folder that holds the files").At(location, folder)
		}
	}
	detail := fmt.Sprintf("holds no weights (*.safetensors, *.gguf); %d other files are there", len(listing.Files))
	switch len(listing.Files) {
	case 0:
		detail = "holds no weights (*.safetensors, *.gguf): it is empty"
	case 1:
		detail = "holds no weights (*.safetensors, *.gguf), but " + functions.Clip(listing.Files[0].Name)
	}
	return nil, nil, &source.Error{Kind: source.Missing, Source: location, Detail: detail,
		Fix: source.WithoutWeights(listing.Names(), "point source at the folder that holds them")}
}

// carriesCode reports whether loading a file of this format runs code from it.
func carriesCode(name string) bool {
	return slices.Contains([]string{".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"}, strings.ToLower(path.Ext(name)))
}

// retry calls try until it succeeds, fails for good, or has failed attempts times.
// With patient, those at which the source asked for fewer requests are not counted, up to
// Patience.
func (j *stagingJob) retry(ctx context.Context, attempts int, patient bool, try func() error) error {
	began, throttled := time.Now(), 0
	for n := 1; ; n++ {
		err := try()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e, ok := errors.AsType[*source.Error](err)
		if !ok || e.Kind != source.Unavailable && e.Kind != source.Malformed {
			return err
		}
		if e.Busy && patient && time.Since(began) < j.loader.o.Retry.Patience {
			throttled++
		}
		if n-throttled >= attempts || e.Kind == source.Malformed && n >= 3 {
			e.Detail = fmt.Sprintf("%s, and again on each of %d tries", e.Detail, n)
			return err
		}
		wait := retryDelay(j.loader.o.Retry, n, e.RetryAfter, rand.Float64())
		if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
			return err
		}
		j.loader.noteRetry(j.progress, err)
		level := slog.LevelDebug
		if n == 2 { // one failure is common
			level = slog.LevelWarn
		}
		j.from.log.Log(ctx, level, "the source is asked again", "failed", n, "in", wait, "err", err)
		if !backoff.Sleep(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// noteRetry counts another attempt on a source that failed, and shows why it is made.
func (l *Loader) noteRetry(feed *progressFeed, err error) {
	l.counts.retries.Add(1)
	feed.update(func(p *Progress) { p.Problem = "the source is asked again: " + err.Error() })
}
