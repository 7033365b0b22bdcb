package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	from        stagingSource
	locationKey string // location and patterns (store.LocationKey)
	patterns    source.Globs
	digest      string
	cancel      context.CancelCauseFunc
	progress    *progressFeed
	priorities  priorities // of the holders

	planned chan struct{} // closed when plan is first set
	done    chan struct{} // closed at the end; result and err are set before

	mu      sync.Mutex // guards the fields below
	holders int
	ended   bool
	plan    *stagingPlan
	listed  string       // store.PlanKey of what was listed last
	lease   *store.Lease // keeps the result while there are holders

	result Checkpoint
	err    error
}

// priorities counts the holders of a staging by their priority.
type priorities struct {
	mu     sync.Mutex
	counts [2]int // by Priority
}

func (p *priorities) add(x Priority, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[x] += n
}

// highest is the priority of the staging.
func (p *priorities) highest() Priority {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[High] > 0 {
		return High
	}
	return Low
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
		j.from.log.Warn("staging failed", "after", time.Since(began), "err", err)
		return
	}
	j.loader.counts.staged.Add(1)
	j.from.log.Info("staged", "digest", c.Digest, "bytes", c.Bytes, "after", time.Since(began))
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
	if from, ok := j.from.Source.(InPlace); ok {
		return j.inPlace(ctx, from)
	}
	if c, err := j.fromStore(j.digest); c != nil || err != nil {
		return c, err
	}
	in, err := j.claimStore(ctx)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	// Another process may have staged it meanwhile.
	if c, err := j.fromStore(j.digest); c != nil || err != nil {
		return c, err
	}
	for try := 0; ; try++ {
		c, err := j.fetchAndCommit(ctx, in)
		if kind := source.KindOf(err); kind != source.Changed && (kind != source.Corrupt && kind != source.Truncated || !j.sourceChanged(ctx)) {
			return c, err
		}
		if try == 1 {
			return nil, &source.Error{Kind: source.Changed, Source: j.from.location, Detail: "changed twice while it was read", Err: err}
		}
		j.from.log.Info("source changed while it was read, planning again")
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
// it is not there, or the digest is "".
func (j *stagingJob) fromStore(digest string) (*Checkpoint, error) {
	if digest == "" {
		return nil, nil
	}
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
	listing, err := j.askSource(ctx)
	if err != nil {
		if c := j.stagedInstead(err); c != nil {
			return c, nil
		}
		return nil, err
	}
	files, err := j.checkListing(listing)
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
				j.from.log.Warn("parts of a finished staging stay", "err", derr)
			}
			return c, err
		}
	}
	if err := in.Prepare(ctx, j.locationKey, files, j.loader.o.Block); err != nil {
		return nil, source.WithSource(err, j.from.location)
	}
	plan := newStagingPlan(j, in, files)
	var total, done int64
	for _, p := range in.Parts {
		have := p.Bytes()
		total, done = total+p.File.Size, done+have
		if p.Linked {
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
	defer j.loader.saveLink(j.from.location, plan, done)
	if err := plan.fetchAll(ctx); err != nil {
		if source.KindOf(err) == source.Changed {
			close(plan.stale)
		}
		return nil, source.WithSource(err, j.from.location)
	}
	j.progress.update(func(p *Progress) { p.State = Publishing })
	staged := functions.ConvertAll(in.Parts, func(p *store.Part) File {
		return File{Name: p.File.Name, Size: p.File.Size, Tree: p.Tree()}
	})
	if err := j.checkDigest(store.Digest(staged)); err != nil {
		return nil, errors.Join(err, in.Discard())
	}
	e, lease, err := in.Commit()
	if err != nil {
		return nil, source.WithSource(err, j.from.location)
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
	return &source.Error{Kind: source.Digest, Source: j.from.location, Detail: fmt.Sprintf("has the digest %s, %s is demanded", got, j.digest)}
}

// inPlace checks a folder that is used where it lies.
func (j *stagingJob) inPlace(ctx context.Context, from InPlace) (*Checkpoint, error) {
	files, err := j.listSource(ctx)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Path: from.Folder(j.from.location), InPlace: true}
	var names []string
	for _, file := range files {
		names = append(names, file.Name)
		c.Bytes += file.Size
	}
	j.progress.update(func(p *Progress) { p.State, p.Total = Fetching, c.Bytes })
	for _, file := range files {
		tree, err := j.inPlaceFile(ctx, from, file, names)
		if err != nil {
			return nil, source.WithSource(source.WithFile(err, file.Name), j.from.location)
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
