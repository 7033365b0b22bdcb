package loader

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/loader/validate"
)

// claimPoll is how often a staging of another process is looked at. File
// locks cannot be waited for with a bound, so this is the one poll here.
const claimPoll = 50 * time.Millisecond

// stagingJob is one staging, whoever holds it. run owns it; holders only read what
// is closed off by done, or ask through mu.
type stagingJob struct {
	loader   *Loader
	key      string
	scheme   string
	location string
	place    string // location, and what is staged beside the list
	patterns source.Globs
	digest   string
	source   Source
	cancel   context.CancelCauseFunc
	progress *progressFeed

	planned chan struct{} // closed when gen is set for the first time
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

// join adds a holder; false when the flight is over, or called off.
func (f *stagingJob) join() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.holders == 0 {
		return false
	}
	f.holders++
	return true
}

func (f *stagingJob) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holders--; f.holders > 0 {
		return
	}
	f.cancel(errReleased)
	f.lease.Release()
	f.lease = nil
}

func (f *stagingJob) addPriority(p Priority, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byPriority[p] += n
}

func (f *stagingJob) priority() Priority {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byPriority[High] > 0 {
		return High
	}
	return Low
}

// run stages and ends the flight.
func (f *stagingJob) run(ctx context.Context) {
	defer f.cancel(nil)
	begun := time.Now()
	f.loader.counts.stagings.Add(1)
	c, err := f.stage(ctx)
	f.loader.counts.stagings.Add(-1)
	if err != nil && ctx.Err() != nil && source.KindOf(err) == "" {
		err = context.Cause(ctx)
	}
	f.mu.Lock()
	f.ended, f.err = true, err
	if err == nil {
		f.lease, c.Lease = c.Lease, nil
		f.result = *c
		if f.holders == 0 {
			f.lease.Release()
			f.lease = nil
		}
	}
	f.mu.Unlock()
	close(f.done)
	f.progress.update(func(p *Progress) {
		if p.State, p.Err = Ready, err; err != nil {
			p.State = Failed
			return
		}
		p.Done, p.Total = c.Bytes, c.Bytes
	})
	if err != nil {
		f.loader.counts.failed.Add(1)
		f.loader.o.Log.Warn("staging failed", "source", f.location, "after", time.Since(begun), "err", err)
		return
	}
	f.loader.counts.staged.Add(1)
	f.loader.o.Log.Info("staged", "source", f.location, "digest", c.Digest, "bytes", c.Bytes, "after", time.Since(begun))
}

// checkpoint is the result with a lease of its own; after done only.
func (f *stagingJob) checkpoint() (*Checkpoint, error) {
	if f.err != nil {
		return nil, f.err
	}
	c := f.result
	if c.InPlace {
		return &c, nil
	}
	_, lease, err := f.loader.o.Store.Acquire(c.Digest)
	if err != nil {
		return nil, err
	}
	c.Lease = lease
	return &c, nil
}

func (f *stagingJob) stage(ctx context.Context) (*Checkpoint, error) {
	if from, ok := f.source.(InPlace); ok {
		return f.inPlace(ctx, from)
	}
	if f.digest != "" {
		if c, err := f.fromStore(f.digest); c != nil || err != nil {
			return c, err
		}
	}
	in, err := f.claimStore(ctx)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if f.digest != "" {
		// Another process may have brought it while this one waited.
		if c, err := f.fromStore(f.digest); c != nil || err != nil {
			return c, err
		}
	}
	for try := 0; ; try++ {
		c, err := f.fetchAndCommit(ctx, in)
		if kind := source.KindOf(err); kind != source.Changed && (kind != source.Corrupt && kind != source.Truncated || !f.sourceChanged(ctx)) {
			return c, err
		}
		if try == 1 {
			return nil, &source.Error{Kind: source.Changed, Source: f.location, What: "changed twice while it was read", Fix: "let the upload finish, then try again", Err: err}
		}
		f.loader.o.Log.Info("source changed while it was read, planning again", "source", f.location)
	}
}

// sourceChanged reports whether the source lists other bytes than those that were just
// found to be bad: a file that is being written is short for a moment, and is
// then no spoiled model but a change.
func (f *stagingJob) sourceChanged(ctx context.Context) bool {
	files, err := f.listSource(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	return err == nil && store.PlanKey(f.place, files) != f.listed
}

// fromStore takes a checkpoint that is in the store; nil without an error when it
// is not.
func (f *stagingJob) fromStore(digest string) (*Checkpoint, error) {
	e, lease, err := f.loader.o.Store.Acquire(digest)
	if source.KindOf(err) == source.Missing {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return checkpointOf(e, lease), nil
}

func checkpointOf(e store.Entry, lease *store.Lease) *Checkpoint {
	c := &Checkpoint{Path: e.Path, Digest: e.Digest, Bytes: e.Bytes, Lease: lease}
	for _, f := range e.Files {
		c.Files = append(c.Files, File(f))
	}
	return c
}

// claimStore waits until no other process stages the same.
func (f *stagingJob) claimStore(ctx context.Context) (*store.Ingest, error) {
	for {
		in, err := f.loader.o.Store.Claim(f.key)
		if !errors.Is(err, store.ErrBusy) {
			return in, err
		}
		done, total, _ := f.loader.o.Store.Peek(f.key)
		f.progress.update(func(p *Progress) { p.State, p.Done, p.Total = Waiting, done, total })
		select {
		case <-time.After(claimPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// fetchAndCommit plans, fetches, verifies and commits.
func (f *stagingJob) fetchAndCommit(ctx context.Context, in *store.Ingest) (*Checkpoint, error) {
	f.progress.update(func(p *Progress) { *p = Progress{State: Planning} })
	files, err := f.listSource(ctx)
	if source.KindOf(err) == source.Unavailable && f.digest == "" {
		if d := f.loader.o.Store.Last(f.place); d != "" {
			if c, herr := f.fromStore(d); c != nil && herr == nil {
				f.loader.o.Log.Warn("source cannot be reached, using what came from it before", "source", f.location, "digest", d, "err", err)
				return c, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.listed = store.PlanKey(f.place, files)
	f.mu.Unlock()
	if d := f.loader.o.Store.Match(f.place, files); d != "" {
		if err := f.checkDigest(d); err != nil {
			return nil, err
		}
		if c, err := f.fromStore(d); c != nil || err != nil {
			// A crash right after a publication leaves its parts behind.
			if derr := in.Discard(); derr != nil {
				f.loader.o.Log.Warn("parts of a finished staging stay", "source", f.location, "err", derr)
			}
			return c, err
		}
	}
	if err := in.Prepare(ctx, f.place, files, f.loader.o.Block); err != nil {
		return nil, f.nameSource(err)
	}
	gen := newStagingPlan(f.loader.limiter(f.location), f.place, files, in.Parts())
	var total, done int64
	for _, p := range in.Parts() {
		have, _ := p.Bytes()
		total, done = total+p.File.Size, done+have
		if p.Linked() {
			f.loader.counts.reused.Add(p.File.Size)
		} else {
			f.loader.counts.resumed.Add(have)
		}
	}
	gen.done.Store(done)
	f.setPlan(gen)
	f.progress.update(func(p *Progress) {
		*p = Progress{State: Fetching, Done: done, Total: total, Resumed: done, Note: p.Note}
	})
	in.Tell(done, total)
	if n := f.loader.o.Peers; n != nil {
		if c := n.Join(ctx, gen.key, files); c != nil {
			defer c.Leave()
			gen.joinSwarm(c)
		}
	}
	defer f.loader.saveLinkStats(f.location, gen, done)
	if err := f.fetchAll(ctx, in, gen); err != nil {
		if source.KindOf(err) == source.Changed {
			close(gen.stale)
		}
		return nil, f.nameSource(err)
	}
	f.progress.update(func(p *Progress) { p.State = Publishing })
	if err := f.checkDigest(store.Digest(storeFiles(in.Parts()))); err != nil {
		return nil, errors.Join(err, in.Discard())
	}
	e, lease, err := in.Commit()
	if err != nil {
		return nil, f.nameSource(err)
	}
	return checkpointOf(e, lease), nil
}

func storeFiles(parts []*store.Part) []store.File {
	var out []store.File
	for _, p := range parts {
		out = append(out, store.File{Name: p.File.Name, Size: p.File.Size, SHA256: p.Sum()})
	}
	return out
}

// setPlan lets readers in.
func (f *stagingJob) setPlan(gen *stagingPlan) {
	f.mu.Lock()
	first := f.plan == nil
	f.plan = gen
	f.mu.Unlock()
	if first {
		close(f.planned)
	}
}

func (f *stagingJob) checkDigest(got string) error {
	if f.digest == "" || f.digest == got {
		return nil
	}
	return &source.Error{Kind: source.Digest, Source: f.location, What: fmt.Sprintf("has the digest %s, %s is demanded", got, f.digest)}
}

// nameSource names the source in an error that does not.
func (f *stagingJob) nameSource(err error) error {
	if e, ok := errors.AsType[*source.Error](err); ok && e.Source == "" {
		e.Source = f.location
	}
	return err
}

// listSource lists the source, retried like a range, and checks what it says.
func (f *stagingJob) listSource(ctx context.Context) ([]source.File, error) {
	var plan source.Plan
	// A listing that cannot be had is given up on sooner than a range: nothing
	// has been paid for yet, and there may be a copy to fall back on.
	err := f.retry(ctx, min(4, f.loader.o.Retry.Attempts), func() (err error) {
		plan, err = f.source.Plan(ctx, f.location, f.patterns)
		return err
	})
	if err != nil {
		return nil, f.nameSource(err)
	}
	files, err := selectFiles(f.location, plan, f.patterns)
	if _, here := f.source.(InPlace); err == nil && !here {
		f.left(plan)
	}
	return files, err
}

// left tells once what of a place is not staged, and how it would be.
func (f *stagingJob) left(plan source.Plan) {
	names := f.patterns.Left(plan.Files)
	if len(names) == 0 {
		return
	}
	note := notStaged(names)
	f.progress.update(func(p *Progress) { p.Note = note })
	f.loader.mu.Lock()
	told := f.loader.skippedNotes[f.place] == note
	if len(f.loader.skippedNotes) >= maxLimiters {
		clear(f.loader.skippedNotes)
	}
	f.loader.skippedNotes[f.place] = note
	f.loader.mu.Unlock()
	if !told {
		f.loader.o.Log.Info(note, "source", f.location)
	}
}

// notStaged is what people are told of files that stay where they are.
func notStaged(names []string) string {
	const most = 5
	what, more := "files", ""
	if len(names) == 1 {
		what = "file"
	}
	if len(names) > most {
		more = ", …"
	}
	return fmt.Sprintf("%d %s not staged: %s%s; spec.files stages them", len(names), what, strings.Join(names[:min(most, len(names))], ", "), more)
}

func selectFiles(location string, plan source.Plan, also source.Globs) ([]source.File, error) {
	files, err := source.Select(location, plan.Files, also)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if source.Weights(file.Name) || also.Match(file.Name) && carriesCode(file.Name) {
			return files, nil
		}
	}
	for _, file := range plan.Files {
		if carriesCode(file.Name) {
			return nil, &source.Error{Kind: source.Refused, Source: location, File: file.Name, What: "is the only kind of weights here, and a format that can carry code",
				Fix: "convert it to safetensors; who trusts it names it in spec.files"}
		}
	}
	return nil, &source.Error{Kind: source.Missing, Source: location, What: fmt.Sprintf("holds no weights (*.safetensors, *.gguf); %d other files are there", len(plan.Files)),
		Fix: "point source at the folder that holds them"}
}

// carriesCode: weights in a format that runs what is in it when it is loaded.
func carriesCode(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack":
		return true
	}
	return false
}

// inPlace checks a folder that is used where it is.
func (f *stagingJob) inPlace(ctx context.Context, from InPlace) (*Checkpoint, error) {
	files, err := f.listSource(ctx)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Path: from.Folder(f.location), InPlace: true}
	var names []string
	for _, file := range files {
		names = append(names, file.Name)
		c.Bytes += file.Size
	}
	f.progress.update(func(p *Progress) { p.State, p.Total = Fetching, c.Bytes })
	var list []store.File
	for _, file := range files {
		sum, err := f.inPlaceFile(ctx, from, file, names)
		if err != nil {
			return nil, f.nameSource(withFileName(file.Name, err))
		}
		c.Files = append(c.Files, File{Name: file.Name, Size: file.Size, SHA256: sum})
		list = append(list, store.File{Name: file.Name, Size: file.Size, SHA256: sum})
		f.progress.update(func(p *Progress) { p.Done += file.Size })
	}
	if f.digest != "" {
		c.Digest = store.Digest(list)
		if err := f.checkDigest(c.Digest); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// inPlaceFile checks one file, and hashes it when a digest is demanded: for
// gigabytes that takes seconds which nobody else has to wait.
func (f *stagingJob) inPlaceFile(ctx context.Context, from InPlace, file source.File, names []string) (string, error) {
	r, err := from.Open(file)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if err := validateFile(file.Name, r, file.Size, names); err != nil {
		return "", err
	}
	if f.digest == "" {
		return "", nil
	}
	id := fmt.Sprintf("%s %d %s", file.Ref, file.Size, file.Version)
	if sum := f.loader.digests.get(id); sum != "" {
		return sum, nil
	}
	h := sha256.New()
	if err := hashAll(ctx, io.NewSectionReader(r, 0, file.Size), h); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	f.loader.digests.put(id, sum)
	return sum, nil
}

func hashAll(ctx context.Context, r io.Reader, h hash.Hash) error {
	buf := make([]byte, 1<<20)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &source.Error{Kind: source.Broken, What: "cannot be read", Err: err}
		}
	}
}

// validateFile looks into a whole file before any engine does.
func validateFile(name string, r io.ReaderAt, size int64, names []string) error {
	if validate.IsIndex(name) {
		return validate.Shards(name, r, size, names)
	}
	return validate.File(name, r, size)
}

// withFileName puts the file's name into an error that has none.
func withFileName(name string, err error) error {
	if e, ok := errors.AsType[*source.Error](err); ok && e.File == "" {
		e.File = name
	}
	return err
}

// files waits for the plan.
func (f *stagingJob) files(ctx context.Context) ([]File, error) {
	select {
	case <-f.planned:
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f.mu.Lock()
	gen := f.plan
	f.mu.Unlock()
	if gen == nil {
		<-f.done
		return slices.Clone(f.result.Files), f.err
	}
	var out []File
	for _, file := range gen.files {
		out = append(out, File{Name: file.Name, Size: file.Size, SHA256: file.SHA256})
	}
	return out, nil
}

// open waits for the plan, then opens the part; or the published file, when
// there is no part any more.
func (f *stagingJob) open(ctx context.Context, name string) (*Reader, error) {
	select {
	case <-f.planned:
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f.mu.Lock()
	gen := f.plan
	f.mu.Unlock()
	missing := &source.Error{Kind: source.Missing, Source: f.location, File: name, What: "is not part of it"}
	if gen != nil {
		p := gen.parts[name]
		if p == nil {
			return nil, missing
		}
		if file, err := p.Open(); err == nil {
			return &Reader{job: f, plan: gen, part: p, file: file, size: p.File.Size, closed: make(chan struct{})}, nil
		}
		// Published, and its part gone, in this moment.
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, f.err
	}
	for _, c := range f.result.Files {
		if c.Name == name {
			file, err := os.Open(filepath.Join(f.result.Path, filepath.FromSlash(name)))
			if err != nil {
				return nil, &source.Error{Kind: source.Broken, Source: f.location, File: name, What: "cannot be opened", Err: err}
			}
			return &Reader{job: f, file: file, size: c.Size, closed: make(chan struct{})}, nil
		}
	}
	return nil, missing
}
