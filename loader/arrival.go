package loader

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Arrival is one plan of a staging: a tree of files that can be read before they have
// arrived. It stays with its plan: if the source changes, reads fail instead of mixing two
// versions. Every block that it returns matched its checksum; the digest of a whole file is
// known only when the staging is ready (Verified). Its methods are safe for concurrent use;
// Close is called once, after them.
type Arrival struct {
	job  *stagingJob
	plan *stagingPlan // nil if all files were here at the start

	// Plan is the key of the plan: equal for the same files in the same versions
	// everywhere; "" if the source was not asked.
	Plan  string
	Files []File
	// Missing is how many bytes were missing at the start; 0 if all were here.
	Missing int64

	mu    sync.Mutex // guards files
	files map[string]*os.File
}

// Arriving waits for the plan, bounded by ctx. It returns the error of a failed
// staging.
func (s *Staging) Arriving(ctx context.Context) (*Arrival, error) {
	j := s.job
	select {
	case <-j.done:
	case <-j.planned:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a := &Arrival{job: j, files: make(map[string]*os.File)}
	select {
	case <-j.done:
		if j.err != nil {
			return nil, j.err
		}
		a.Files, a.Plan = j.result.Files, s.PlanKey()
		return a, nil
	default:
	}
	j.mu.Lock()
	a.plan = j.plan
	j.mu.Unlock()
	a.Plan = a.plan.key
	for name, p := range a.plan.parts {
		a.Files = append(a.Files, File{Name: name, Size: p.File.Size})
		a.Missing += p.File.Size - p.Bytes()
	}
	return a, nil
}

// Verified waits for the end of the staging and returns nil if its result is the very
// bytes that were read here.
func (a *Arrival) Verified(ctx context.Context) error {
	if err := awaitClosed(ctx, a.job.done); err != nil {
		return err
	}
	if a.job.err != nil {
		return a.job.err
	}
	return a.changed("")
}

// changed returns the error of a plan that no longer holds: the source changed, or a
// file failed its digest.
func (a *Arrival) changed(name string) error {
	if a.plan == nil {
		return nil
	}
	changed := &source.Error{Kind: source.Changed, Source: a.job.from.location, File: name, Detail: "changed while it was read"}
	select {
	case <-a.plan.stale:
		return changed
	default:
	}
	if a.plan.corrupted.Load() {
		changed.Detail = "was read before its digest showed that it is not what the source keeps; it was fetched again"
		return changed
	}
	return nil
}

// ReadAt fills b from off of a file, which must hold that many bytes, and waits for
// missing blocks: those are fetched first, the following ones next.
func (a *Arrival) ReadAt(ctx context.Context, name string, b []byte, off int64) (int, error) {
	if a.plan != nil {
		p := a.plan.parts[name]
		if p == nil || off < 0 || off+int64(len(b)) > p.File.Size {
			return 0, &source.Error{Kind: source.Missing, Source: a.job.from.location, File: name, Detail: "does not have the bytes asked for"}
		}
		if len(b) == 0 {
			return 0, nil
		}
		block := a.job.loader.o.Block
		for i, last := int(off/block), int((off+int64(len(b))-1)/block); i <= last; i++ {
			if err := a.await(ctx, p, i, true); err != nil {
				return 0, err
			}
		}
	}
	file, err := a.open(ctx, name)
	if err != nil {
		return 0, err
	}
	if a.plan != nil {
		block, size := a.job.loader.o.Block, a.plan.parts[name].File.Size
		if first := (off + block - 1) / block * block; first < off+int64(len(b)) {
			store.ReadAhead(file, first, min(block, size-first))
		}
	}
	n, err := file.ReadAt(b, off)
	if n < len(b) {
		return n, &source.Error{Kind: source.Broken, Source: a.job.from.location, File: name, Detail: "cannot be read back", Err: err}
	}
	return n, nil
}

// await waits for a block, which is fetched first; with ahead the blocks after it are next.
func (a *Arrival) await(ctx context.Context, p *store.Part, i int, ahead bool) error {
	for first := true; ; first = false {
		next := p.Changed()
		if err := a.changed(p.File.Name); err != nil {
			return err
		}
		if p.Has(i) {
			return nil
		}
		if first {
			a.plan.queue.prioritize(blockRef{p, i})
			if ahead {
				a.plan.queue.prefetchAfter(p, i)
			}
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.plan.stale:
		case <-a.job.done:
			if p.Has(i) {
				return a.changed(p.File.Name)
			}
			if a.job.err != nil {
				return a.job.err
			}
			return &source.Error{Kind: source.Changed, Source: a.job.from.location, File: p.File.Name, Detail: "changed while it was read"}
		}
	}
}

// open keeps one open file per name: a part's name goes when it is published, its
// bytes stay.
func (a *Arrival) open(ctx context.Context, name string) (*os.File, error) {
	a.mu.Lock()
	f := a.files[name]
	a.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := a.find(ctx, name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.files[name]; other != nil {
		f.Close()
		return other, nil
	}
	a.files[name] = f
	return f, nil
}

func (a *Arrival) find(ctx context.Context, name string) (*os.File, error) {
	if a.plan != nil {
		if f, err := a.plan.parts[name].Open(); err == nil {
			return f, nil
		}
		// The part was just published, or dropped for another plan: wait for the job to
		// finish.
		select {
		case <-a.job.done:
		case <-a.plan.stale:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if err := a.changed(name); err != nil {
			return nil, err
		}
	}
	if a.job.err != nil {
		return nil, a.job.err
	}
	f, err := os.Open(filepath.Join(a.job.result.Path, filepath.FromSlash(name)))
	if err != nil {
		return nil, &source.Error{Kind: source.Broken, Source: a.job.from.location, File: name, Detail: "cannot be opened", Err: err}
	}
	return f, nil
}

func (a *Arrival) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.files {
		f.Close()
	}
	clear(a.files)
}
