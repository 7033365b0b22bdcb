package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// claimPoll is the interval at which a staging of another process is polled: a file
// lock cannot be awaited with a bound.
const claimPoll = 50 * time.Millisecond

// stagingJob is one staging, shared by its holders. run owns it; holders read result
// and err after done, and the rest under mu.
type stagingJob struct {
	loader      *Loader
	key         string
	scheme      string
	location    string
	locationKey string // location and patterns (store.LocationKey)
	patterns    source.Globs
	digest      string
	source      Source
	cancel      context.CancelCauseFunc
	progress    *progressFeed

	planned chan struct{} // closed when plan is first set
	done    chan struct{} // closed at the end; result and err are set before

	mu         sync.Mutex // guards the fields below
	holders    int
	byPriority [2]int // holders by Priority
	ended      bool
	plan       *stagingPlan
	listed     string       // store.PlanKey of what was listed last
	lease      *store.Lease // keeps the result while there are holders

	result Checkpoint
	err    error

	refreshing sync.Mutex // guards the fields below
	refreshed  time.Time  // when the source got new credentials; zero before
}

var errReleased = errors.New("released by all who asked for it")

// join adds a holder. It returns false if the job has ended or is cancelled.
func (j *stagingJob) join() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended || j.holders == 0 {
		return false
	}
	j.holders++
	return true
}

func (j *stagingJob) release() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.holders--; j.holders > 0 {
		return
	}
	j.cancel(errReleased)
	j.lease.Release()
	j.lease = nil
}

func (j *stagingJob) addPriority(p Priority, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.byPriority[p] += n
}

func (j *stagingJob) priority() Priority {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.byPriority[High] > 0 {
		return High
	}
	return Low
}

func (j *stagingJob) run(ctx context.Context) {
	defer j.cancel(nil)
	began := time.Now()
	j.loader.counts.stagings.Add(1)
	c, err := j.stage(ctx)
	j.loader.counts.stagings.Add(-1)
	if err != nil && ctx.Err() != nil && source.KindOf(err) == "" {
		err = context.Cause(ctx)
	}
	j.mu.Lock()
	j.ended, j.err = true, err
	if err == nil {
		j.lease, c.Lease = c.Lease, nil
		j.result = *c
		if j.holders == 0 {
			j.lease.Release()
			j.lease = nil
		}
	}
	j.mu.Unlock()
	close(j.done)
	j.progress.update(func(p *Progress) {
		if p.State, p.Err = Ready, err; err != nil {
			p.State = Failed
			return
		}
		p.Done, p.Total = c.Bytes, c.Bytes
	})
	if err != nil {
		j.loader.counts.failed.Add(1)
		j.loader.o.Log.Warn("staging failed", "source", j.location, "after", time.Since(began), "err", err)
		return
	}
	j.loader.counts.staged.Add(1)
	j.loader.o.Log.Info("staged", "source", j.location, "digest", c.Digest, "bytes", c.Bytes, "after", time.Since(began))
}

// checkpoint returns the result with a lease of its own; only after done.
func (j *stagingJob) checkpoint() (*Checkpoint, error) {
	if j.err != nil {
		return nil, j.err
	}
	c := j.result
	if c.InPlace {
		return &c, nil
	}
	_, lease, err := j.loader.o.Store.Acquire(c.Digest)
	if err != nil {
		return nil, err
	}
	c.Lease = lease
	return &c, nil
}

func (j *stagingJob) stage(ctx context.Context) (*Checkpoint, error) {
	if from, ok := j.source.(InPlace); ok {
		return j.inPlace(ctx, from)
	}
	if j.digest != "" {
		if c, err := j.fromStore(j.digest); c != nil || err != nil {
			return c, err
		}
	}
	in, err := j.claimStore(ctx)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if j.digest != "" {
		// Another process may have staged it meanwhile.
		if c, err := j.fromStore(j.digest); c != nil || err != nil {
			return c, err
		}
	}
	for try := 0; ; try++ {
		c, err := j.fetchAndCommit(ctx, in)
		if kind := source.KindOf(err); kind != source.Changed && (kind != source.Corrupt && kind != source.Truncated || !j.sourceChanged(ctx)) {
			return c, err
		}
		if try == 1 {
			return nil, &source.Error{Kind: source.Changed, Source: j.location, Detail: "changed twice while it was read",
				Fix: "let the upload finish, then try again", Err: err}
		}
		j.loader.o.Log.Info("source changed while it was read, planning again", "source", j.location)
	}
}

// sourceChanged reports whether the source now lists other bytes than those just found
// bad: a file that is still being written is short for a moment, which is a change and
// not a corrupt model.
func (j *stagingJob) sourceChanged(ctx context.Context) bool {
	files, err := j.listSource(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	return err == nil && store.PlanKey(j.locationKey, files) != j.listed
}

// fromStore returns the checkpoint of a digest from the store; nil without an error if
// it is not there.
func (j *stagingJob) fromStore(digest string) (*Checkpoint, error) {
	e, lease, err := j.loader.o.Store.Acquire(digest)
	if source.KindOf(err) == source.Missing {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return checkpointOf(e, lease), nil
}

func checkpointOf(e store.Entry, lease *store.Lease) *Checkpoint {
	return &Checkpoint{Path: e.Path, Digest: e.Digest, Files: e.Files, Bytes: e.Bytes, Lease: lease}
}

// claimStore waits until no other process stages the same.
func (j *stagingJob) claimStore(ctx context.Context) (*store.Ingest, error) {
	for {
		in, err := j.loader.o.Store.Claim(j.key)
		if !errors.Is(err, store.ErrBusy) {
			return in, err
		}
		done, total, _ := j.loader.o.Store.Progress(j.key)
		j.progress.update(func(p *Progress) { p.State, p.Done, p.Total = Waiting, done, total })
		if !backoff.Sleep(ctx, claimPoll) {
			return nil, context.Cause(ctx)
		}
	}
}

func (j *stagingJob) fetchAndCommit(ctx context.Context, in *store.Ingest) (*Checkpoint, error) {
	j.progress.update(func(p *Progress) { *p = Progress{State: Planning} })
	files, err := j.listSource(ctx)
	if source.KindOf(err) == source.Unavailable && j.digest == "" {
		if d := j.loader.o.Store.Plans.LastDigest(j.locationKey); d != "" {
			if c, herr := j.fromStore(d); c != nil && herr == nil {
				j.loader.o.Log.Warn("source cannot be reached, using what came from it before", "source", j.location, "digest", d, "err", err)
				return c, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	j.listed = store.PlanKey(j.locationKey, files)
	j.mu.Unlock()
	if d := j.loader.o.Store.Plans.DigestOf(j.locationKey, files); d != "" {
		if err := j.checkDigest(d); err != nil {
			return nil, err
		}
		if c, err := j.fromStore(d); c != nil || err != nil {
			// A crash right after publishing leaves the parts behind.
			if derr := in.Discard(); derr != nil {
				j.loader.o.Log.Warn("parts of a finished staging stay", "source", j.location, "err", derr)
			}
			return c, err
		}
	}
	if err := in.Prepare(ctx, j.locationKey, files, j.loader.o.Block); err != nil {
		return nil, j.nameSource(err)
	}
	plan := newStagingPlan(j.loader.limiter(j.location), j.locationKey, files, in.Parts())
	var total, done int64
	for _, p := range in.Parts() {
		have, _ := p.Bytes()
		total, done = total+p.File.Size, done+have
		if p.Linked() {
			j.loader.counts.reused.Add(p.File.Size)
		} else {
			j.loader.counts.resumed.Add(have)
		}
	}
	plan.done.Store(done)
	j.setPlan(plan)
	j.progress.update(func(p *Progress) {
		*p = Progress{State: Fetching, Done: done, Total: total, Resumed: done, Note: p.Note}
	})
	in.SetProgress(done, total)
	if n := j.loader.o.Peers; n != nil {
		if c := n.Join(ctx, plan.key, files); c != nil {
			defer c.Leave()
			plan.joinSwarm(c)
		}
	}
	defer j.loader.saveLink(j.location, plan, done)
	if err := j.fetchAll(ctx, in, plan); err != nil {
		if source.KindOf(err) == source.Changed {
			close(plan.stale)
		}
		return nil, j.nameSource(err)
	}
	j.progress.update(func(p *Progress) { p.State = Publishing })
	staged := functions.ConvertAll(in.Parts(), func(p *store.Part) File {
		return File{Name: p.File.Name, Size: p.File.Size, Tree: p.Tree()}
	})
	if err := j.checkDigest(store.Digest(staged)); err != nil {
		return nil, errors.Join(err, in.Discard())
	}
	e, lease, err := in.Commit()
	if err != nil {
		return nil, j.nameSource(err)
	}
	return checkpointOf(e, lease), nil
}

// setPlan lets readers start.
func (j *stagingJob) setPlan(plan *stagingPlan) {
	j.mu.Lock()
	first := j.plan == nil
	j.plan = plan
	j.mu.Unlock()
	if first {
		close(j.planned)
	}
}

func (j *stagingJob) checkDigest(got string) error {
	if j.digest == "" || j.digest == got {
		return nil
	}
	return &source.Error{Kind: source.Digest, Source: j.location, Detail: fmt.Sprintf("has the digest %s, %s is demanded", got, j.digest)}
}

// nameSource adds the location to an error that has none.
func (j *stagingJob) nameSource(err error) error {
	return source.WithSource(err, j.location)
}

// listSource lists the source, with retries, and checks the listing.
func (j *stagingJob) listSource(ctx context.Context) ([]source.File, error) {
	var listing source.Plan
	// Fewer attempts than for a range: no byte has been downloaded yet, and an
	// older copy may be in the store.
	patient := j.loader.o.Retry.Attempts == math.MaxInt && (j.loader.o.Store == nil || j.loader.o.Store.Plans.LastDigest(j.locationKey) == "")
	err := j.retry(ctx, min(4, j.loader.o.Retry.Attempts), patient, func() (err error) {
		listing, err = j.source.Plan(ctx, j.location, j.patterns)
		return err
	})
	if err != nil {
		return nil, j.nameSource(err)
	}
	files, left, err := selectFiles(j.location, listing, j.patterns)
	if err == nil {
		j.noteSkipped(listing, left)
	}
	return files, err
}

// noteSkipped logs once which files of a location are not staged, and how to stage
// them; in a folder used in place, only those that cannot be used.
func (j *stagingJob) noteSkipped(listing source.Plan, left []source.LeftOut) {
	var names []string
	if _, isInPlace := j.source.(InPlace); !isInPlace {
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
		j.loader.o.Log.Log(context.Background(), level, note, "source", j.location)
	}
}

// notStaged is the note on files that are not staged, "" for none: those that spec.files
// would stage, and those that cannot be.
func notStaged(names []string, left []source.LeftOut) string {
	const maximum = 5
	if len(left) > 0 {
		var parts []string
		for _, l := range left[:min(len(left), maximum)] {
			parts = append(parts, fmt.Sprintf("%q %s", functions.Clip(l.Name), l.Reason))
		}
		if len(left) > maximum {
			parts = append(parts, fmt.Sprintf("and %d more", len(left)-maximum))
		}
		note := "left out: " + strings.Join(parts, "; ")
		if len(names) > 0 {
			note += "; " + notStaged(names, nil)
		}
		return note
	}
	if len(names) == 0 {
		return ""
	}
	noun, more := "files", ""
	if len(names) == 1 {
		noun = "file"
	}
	if len(names) > maximum {
		more = ", …"
	}
	return fmt.Sprintf("%d %s not staged: %s%s; spec.files stages them", len(names), noun,
		strings.Join(names[:min(maximum, len(names))], ", "), more)
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
	for _, file := range files {
		if source.Weights(file.Name) || also.Match(file.Name) && carriesCode(file.Name) {
			return files, left, nil
		}
	}
	for _, file := range listing.Files {
		if carriesCode(file.Name) {
			return nil, nil, source.Fail(source.Refused, "is the only kind of weights here, and a format that can carry code",
				"convert it to safetensors; who trusts it names it in spec.files").At(location, file.Name)
		}
	}
	for _, file := range listing.Files {
		if folder := path.Dir(file.Name); source.Weights(folder) {
			return nil, nil, source.Fail(source.Missing, "is a folder, and engines read a file of that name",
				"point source at the folder that holds the files").At(location, folder)
		}
	}
	return nil, nil, &source.Error{Kind: source.Missing, Source: location,
		Detail: fmt.Sprintf("holds no weights (*.safetensors, *.gguf); %d other files are there", len(listing.Files)),
		Fix:    source.WithoutWeights(source.Names(listing.Files), "point source at the folder that holds them")}
}

// carriesCode reports whether loading a file of this format runs code from it.
func carriesCode(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack":
		return true
	}
	return false
}

// inPlace checks a folder that is used where it lies.
func (j *stagingJob) inPlace(ctx context.Context, from InPlace) (*Checkpoint, error) {
	files, err := j.listSource(ctx)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Path: from.Folder(j.location), InPlace: true}
	var names []string
	for _, file := range files {
		names = append(names, file.Name)
		c.Bytes += file.Size
	}
	j.progress.update(func(p *Progress) { p.State, p.Total = Fetching, c.Bytes })
	for _, file := range files {
		tree, err := j.inPlaceFile(ctx, from, file, names)
		if err != nil {
			return nil, j.nameSource(source.WithFile(err, file.Name))
		}
		c.Files = append(c.Files, File{Name: file.Name, Size: file.Size, Tree: tree})
		j.progress.update(func(p *Progress) { p.Done += file.Size })
	}
	if j.digest != "" {
		c.Digest = store.Digest(c.Files)
		if err := j.checkDigest(c.Digest); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// inPlaceFile checks one file, and hashes it only if a digest is demanded: hashing
// gigabytes takes seconds.
func (j *stagingJob) inPlaceFile(ctx context.Context, from InPlace, file source.File, names []string) (string, error) {
	r, err := from.Open(file)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if err := validateFile(file.Name, r, file.Size, names); err != nil {
		return "", err
	}
	if j.digest == "" {
		return "", nil
	}
	id := fmt.Sprintf("%s %d %s", file.Ref, file.Size, file.Version)
	if tree := j.loader.digests.get(id); tree != "" {
		return tree, nil
	}
	tree, err := store.ReadTree(ctx, r, file.Size, j.loader.o.Block)
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	}
	j.loader.digests.put(id, tree)
	return tree, nil
}

// validateFile checks a whole file before any engine reads it.
func validateFile(name string, r io.ReaderAt, size int64, names []string) error {
	if headercheck.IsIndex(name) {
		_, err := headercheck.Shards(name, r, size, names)
		return err
	}
	return headercheck.File(name, r, size)
}

// minLinkBlocks is how many blocks a download must have brought for its source to count
// as measured.
const minLinkBlocks = 16

// saveLink stores what a download measured of its source, if it brought enough:
// done of plan, less the bytes that were here before.
func (l *Loader) saveLink(location string, plan *stagingPlan, before int64) {
	if plan.done.Load()-before < minLinkBlocks*l.o.Block {
		return
	}
	if p, ok := plan.limiter.Link(); ok {
		l.links.Put(sourceHost(location), p)
	}
}

const maxDigests = 10_000

// digestCache keeps the digests of files used in place, by path, size and modification
// time.
type digestCache struct {
	mu sync.Mutex
	m  map[string]string
}

func (c *digestCache) get(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[id]
}

func (c *digestCache) put(id, sum string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || len(c.m) >= maxDigests {
		c.m = make(map[string]string)
	}
	c.m[id] = sum
}
