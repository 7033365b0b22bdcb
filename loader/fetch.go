package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/thaw-dev/thaw/loader/check"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// maxRetryAfter is the longest a source may ask to be left alone.
const maxRetryAfter = time.Minute

// job is one block to fetch.
type job struct {
	part  *store.Part
	block int
}

// queue says which block is next: those a reader waits for, then the rest in
// order.
type queue struct {
	mu     sync.Mutex // guards all below
	urgent []job
	rest   []job
	open   map[job]bool // not yet taken
}

func newQueue() *queue { return &queue{open: make(map[job]bool)} }

// fill adds the missing blocks of parts: the first of every file before the
// second of any.
func (q *queue) fill(parts []*store.Part) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	add := func(p *store.Part, i int) {
		if j := (job{p, i}); !p.Has(i) && !q.open[j] {
			q.open[j] = true
			q.rest = append(q.rest, j)
		}
	}
	for _, p := range parts {
		if p.Blocks() > 0 {
			add(p, 0)
		}
	}
	for _, p := range parts {
		for i := 1; i < p.Blocks(); i++ {
			add(p, i)
		}
	}
	return len(q.open)
}

// hurry puts a block in front, unless it is being fetched already.
func (q *queue) hurry(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[j] {
		q.urgent = append(q.urgent, j)
	}
}

func (q *queue) next() (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, from := range []*[]job{&q.urgent, &q.rest} {
		for len(*from) > 0 {
			j := (*from)[0]
			*from = (*from)[1:]
			if q.open[j] {
				delete(q.open, j)
				return j, true
			}
		}
	}
	return job{}, false
}

// fetchAll fetches what is missing and seals every part. A file that turns out
// not to be what the source's digest says is fetched once more.
func (f *flight) fetchAll(ctx context.Context, in *store.Ingest, gen *generation) error {
	parts := in.Parts()
	names := make([]string, 0, len(parts))
	for _, p := range parts {
		names = append(names, p.File.Name)
	}
	for round := 0; ; round++ {
		var left, bad []*store.Part
		for _, p := range parts {
			if p.Sum() == "" {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			// What an earlier try brought, and perhaps failed on.
			if p.Blocks() > 0 && p.Has(0) {
				if err := early(job{p, 0}, names); err != nil {
					return named(p.File.Name, err)
				}
			}
		}
		workers := min(gen.queue.fill(left), f.l.o.Parallel)
		err := together(ctx, workers+1, func(ctx context.Context, i int) error {
			if i < workers {
				return f.work(ctx, in, gen, names)
			}
			for _, p := range left {
				wrong, err := f.verify(ctx, p, names)
				if err != nil {
					return err
				}
				if wrong {
					bad = append(bad, p)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, p := range bad {
			gen.spoiled.Store(true)
			if err := p.Reset(); err != nil {
				return err
			}
			if round > 0 {
				return &source.Error{Kind: source.Digest, File: p.File.Name, What: "came twice with bytes that are not those of the digest the source keeps", Fix: "upload it again"}
			}
			f.l.o.Log.Warn("file differs from its digest, fetching it again", "source", f.location, "file", p.File.Name)
			f.news.update(func(g *Progress) { g.Done -= p.File.Size })
		}
	}
}

// together runs n bodies and returns the first error, which ends the others.
func together(ctx context.Context, n int, body func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := body(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (f *flight) work(ctx context.Context, in *store.Ingest, gen *generation, names []string) error {
	for {
		j, ok := gen.queue.next()
		if !ok {
			return nil
		}
		if err := f.fetch(ctx, gen, j); err != nil {
			return named(j.part.File.Name, err)
		}
		if err := early(j, names); err != nil {
			return named(j.part.File.Name, err)
		}
		_, n := j.part.Range(j.block)
		if f.news.update(func(p *Progress) { p.Done += n }) {
			p := f.news.now()
			in.Tell(p.Done, p.Total)
		}
	}
}

// early looks into what the first block shows, before the rest is paid for.
func early(j job, names []string) error {
	p := j.part
	if j.block != 0 {
		return nil
	}
	_, first := p.Range(0)
	if strings.EqualFold(path.Ext(p.File.Name), ".safetensors") && first >= 8 {
		var head [8]byte
		if _, err := p.ReadAt(head[:], 0); err != nil {
			return &source.Error{Kind: source.Broken, What: "cannot be read back", Err: err}
		}
		end, err := check.HeaderEnd(head, p.File.Size)
		if err != nil {
			return err
		}
		if end > first {
			return nil
		}
		return check.Safetensors(p, p.File.Size)
	}
	if first == p.File.Size {
		return inspect(p.File.Name, p, p.File.Size, names)
	}
	return nil
}

// fetch brings one block.
func (f *flight) fetch(ctx context.Context, gen *generation, j job) error {
	if ok, err := f.borrow(ctx, gen, j); ok || err != nil {
		return err
	}
	return f.retry(ctx, f.l.o.Retry.Attempts, func() error {
		// The buffer is given back between attempts: a source that wants to be
		// left alone must not hold up another one.
		buf, err := f.l.lanes.acquire(ctx, f.priority())
		if err != nil {
			return err
		}
		defer f.l.lanes.release(buf)
		off, n := j.part.Range(j.block)
		f.l.counts.requests.Add(1)
		f.l.counts.inFlight.Add(1)
		defer f.l.counts.inFlight.Add(-1)
		if err := f.read(ctx, j.part.File, off, buf[:n]); err != nil {
			return err
		}
		f.l.counts.of(f.scheme).Add(n)
		return j.part.Put(j.block, buf[:n])
	})
}

// borrow brings a block from another node; false when there is none that has
// it, or when it lies.
func (f *flight) borrow(ctx context.Context, gen *generation, j job) (bool, error) {
	off, n := j.part.Range(j.block)
	b := Block{File: j.part.File, Index: j.block, Offset: off, Length: n}
	if gen.company == nil || gen.company.Mine(b) {
		return false, nil
	}
	body, sum, ok := gen.company.Fetch(ctx, b)
	if !ok {
		return false, nil
	}
	defer body.Close()
	buf, err := f.l.lanes.acquire(ctx, f.priority())
	if err != nil {
		return false, err
	}
	defer f.l.lanes.release(buf)
	if _, err := io.ReadFull(body, buf[:n]); err != nil || xxh3.Hash(buf[:n]) != sum {
		f.l.counts.wasted.Add(n)
		return false, nil
	}
	f.l.counts.of(fromPeers).Add(n)
	return true, j.part.Put(j.block, buf[:n])
}

var errIdle = errors.New("no byte came for too long")

// read fills b with the file's bytes from off.
func (f *flight) read(ctx context.Context, file source.File, off int64, b []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(f.l.o.Retry.Idle, func() { cancel(errIdle) })
	defer idle.Stop()
	body, err := f.from.Read(ctx, file, off, int64(len(b)))
	if err != nil {
		return stalled(ctx, err)
	}
	defer body.Close()
	got := 0
	for got < len(b) {
		n, err := body.Read(b[got:])
		got += n
		if n > 0 {
			idle.Reset(f.l.o.Retry.Idle)
		}
		if err == nil {
			continue
		}
		if got == len(b) && err == io.EOF {
			return nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &source.Error{Kind: source.Malformed, What: fmt.Sprintf("the range at byte %d ended after %d of %d bytes", off, got, len(b))}
		}
		if source.KindOf(err) == "" {
			// Never the transport's own text: it may hold the whole URL.
			err = &source.Error{Kind: source.Unavailable, What: fmt.Sprintf("the connection broke after %d of %d bytes", got, len(b))}
		}
		return stalled(ctx, err)
	}
	var more [1]byte
	if n, _ := body.Read(more[:]); n > 0 {
		return &source.Error{Kind: source.Malformed, What: fmt.Sprintf("the range at byte %d brought more than the %d bytes asked for", off, len(b))}
	}
	return nil
}

// stalled tells a range that was cancelled for its slowness from one that was
// called off.
func stalled(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errIdle) {
		return cause
	}
	return &source.Error{Kind: source.Unavailable, What: errIdle.Error()}
}

// retry runs try until it succeeds, fails for good, or has failed too often.
func (f *flight) retry(ctx context.Context, attempts int, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if err == nil || ctx.Err() != nil {
			if err != nil {
				err = context.Cause(ctx)
			}
			return err
		}
		e, ok := errors.AsType[*source.Error](err)
		if !ok || e.Kind != source.Unavailable && e.Kind != source.Malformed {
			return err
		}
		if n >= attempts || e.Kind == source.Malformed && n >= 3 {
			e.What = fmt.Sprintf("%s, and again on each of %d tries", e.What, n)
			return err
		}
		f.l.counts.retries.Add(1)
		if e.RetryAfter > 0 {
			f.l.counts.throttles.Add(1)
		}
		wait := pause(f.l.o.Retry, n, e.RetryAfter, rand.Float64())
		f.l.o.Log.Debug("trying again", "source", f.location, "try", n, "in", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause is how long to wait after attempt n (from 1); draw is from [0,1).
// What the source asks for is a floor, with jitter on top: all ranges were
// told the same.
func pause(r Retry, n int, after time.Duration, draw float64) time.Duration {
	bound := r.Max
	if shift := n - 1; shift < 20 {
		bound = min(r.Base<<shift, r.Max)
	}
	return min(after, maxRetryAfter) + time.Duration(draw*float64(bound))
}
