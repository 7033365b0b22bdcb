package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/rangelimit"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

type rangeRequest struct {
	part   *store.Part
	blocks *blockRange
	hedge  bool // second request for a block that another brings too slowly
	cancel context.CancelCauseFunc
	began  time.Time

	block        atomic.Int64
	first        atomic.Int64 // nanoseconds to the first byte; 0 before it
	bytes        atomic.Int64
	hedged       atomic.Bool  // a second request was sent
	waited       atomic.Int64 // nanoseconds spent waiting for the source
	waitingSince atomic.Int64 // start of the current wait; 0 while the disk is written

	// The fields below belong to findSlow.
	reported int64
	seenWait time.Duration
	checks   int
	speed    float64
}

var (
	errIdle = errors.New("no byte came for too long")
	// errHedgeWon cancels a request whose block another one has completed.
	errHedgeWon = errors.New("another request was faster")
)

// maxRetryAfter bounds the Retry-After that is respected.
const maxRetryAfter = time.Minute

// downloadRange fetches the blocks of a range, in as many requests as it takes. The
// caller has acquired a slot of the limiter; it is released between attempts, so that
// a paused source does not hold up another staging.
func (s *stagingPlan) downloadRange(ctx context.Context, r *blockRange) error {
	defer s.queue.finish(r)
	name := r.part.File.Name
	fruitless := time.Now() // since when no attempt brought a byte
	for tries := 0; ; {
		began := time.Now()
		got, want, err := s.requestRange(ctx, r, false)
		s.limiter.Release()
		if err == nil {
			if _, _, more := s.queue.position(r); !more {
				return nil
			}
			// Another request completed the current block.
		} else {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if got >= min(want, minProgress) && got > 0 {
				tries, fruitless = 0, time.Now()
			}
			tries++
			if err := s.backOff(ctx, tries, began, fruitless, err); err != nil {
				return source.WithFile(err, name)
			}
		}
		if err := s.limiter.Acquire(ctx, s.priorities.highest(), false); err != nil {
			return err
		}
	}
}

// minProgress is how many bytes a request must bring to reset the count of attempts.
const minProgress = 256 << 10

// backOff waits before the next attempt, or returns why there is none. The last
// attempt began at began, and none since fruitless brought a byte.
func (s *stagingPlan) backOff(ctx context.Context, tries int, began, fruitless time.Time, err error) error {
	e, ok := errors.AsType[*source.Error](err)
	if ok && e.Kind == source.Denied && s.from.refresh(ctx, began) {
		return nil
	}
	if !ok || e.Kind != source.Unavailable && e.Kind != source.Malformed {
		return err
	}
	if tries >= s.loader.o.Retry.Attempts || e.Kind == source.Malformed && tries >= 3 || time.Since(fruitless) >= s.loader.o.Retry.Patience {
		e.Detail = fmt.Sprintf("%s, and again on each of %d tries", e.Detail, tries)
		return err
	}
	own := retryDelay(s.loader.o.Retry, tries, 0, rand.Float64())
	if e.Busy || e.RetryAfter > 0 {
		s.loader.counts.throttles.Add(1)
		wait := cmp.Or(min(e.RetryAfter, maxRetryAfter), retryDelay(s.loader.o.Retry, tries, 0, 0.5))
		s.limiter.Throttle(time.Now(), wait)
	}
	s.loader.noteRetry(s.progress, err)
	s.from.log.Debug("trying again", "try", tries, "in", own, "err", err)
	if !backoff.Sleep(ctx, own) {
		return context.Cause(ctx)
	}
	return nil
}

// requestRange fetches what is missing of a range from its current block on. It
// succeeds when the range is complete or others have completed the current block. It
// returns how many of the wanted bytes came.
func (s *stagingPlan) requestRange(ctx context.Context, r *blockRange, second bool) (got, want int64, err error) {
	block, end, ok := s.queue.position(r)
	if !ok {
		return 0, 0, nil
	}
	piece, err := s.loader.buffers.get(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer s.loader.buffers.put(piece)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req := &rangeRequest{part: r.part, blocks: r, hedge: second, cancel: cancel, began: time.Now()}
	req.block.Store(int64(block))
	s.requests.add(req)
	defer s.requests.remove(req)
	w := r.part.Writer(block)
	from, _ := w.Position()
	last, n := r.part.Range(end - 1)
	want = last + n - from
	s.loader.counts.requests.Add(1)
	s.loader.counts.inFlight.Add(1)
	defer s.loader.counts.inFlight.Add(-1)
	err = s.readRange(ctx, req, w, piece, from, want)
	got = req.bytes.Load()
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errHedgeWon) {
		return got, want, nil
	}
	if err == nil && got > 0 {
		s.limiter.RecordRange(time.Duration(req.first.Load()), got, time.Since(req.began)-time.Duration(req.first.Load()))
	}
	return got, want, err
}

// requestSet is the requests of a plan that are in flight.
type requestSet struct {
	mu sync.Mutex
	m  map[*rangeRequest]bool
}

func (s *requestSet) add(req *rangeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[req] = true
}

func (s *requestSet) remove(req *rangeRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, req)
}

// cancel ends the requests that fetch a block, which is complete.
func (s *requestSet) cancel(ref blockRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for req := range s.m {
		if req.part == ref.part && int(req.block.Load()) == ref.block {
			req.cancel(errHedgeWon)
		}
	}
}

// readRange moves n bytes from off on to the disk, piece by piece.
func (s *stagingPlan) readRange(ctx context.Context, req *rangeRequest, w *store.Writer, piece []byte, off, n int64) error {
	file := req.part.File
	idle := time.AfterFunc(s.loader.o.Retry.Idle, func() { req.cancel(errIdle) })
	defer idle.Stop()
	at, stop := off, off+n
	if from, ok := s.from.Source.(BlockReader); ok && n <= int64(len(piece)) {
		if err := from.ReadInto(ctx, file, at, piece[:n]); err != nil {
			return cancelReason(ctx, err)
		}
		req.first.Store(int64(time.Since(req.began)))
		req.bytes.Add(n)
		s.limiter.CountBytes(n)
		for at < stop {
			_, end := w.Position()
			end = min(end, stop)
			more, err := s.writePiece(req, &w, at, piece[at-off:end-off])
			if err != nil || !more {
				return err
			}
			at = end
		}
		return nil
	}
	began := req.beginWait()
	body, err := s.from.Read(ctx, file, at, n)
	req.endWait(began)
	if err != nil {
		return cancelReason(ctx, err)
	}
	defer body.Close()
	for at < stop {
		_, end := w.Position()
		// The buffer has the alignment of the file offset, so that whole pages
		// can be written with O_DIRECT.
		b := piece[at%int64(len(piece)):]
		b = b[:min(int64(len(b)), end-at, stop-at)]
		k, err := s.fillPiece(ctx, req, body, b, idle, at-off, n)
		if k > 0 {
			more, perr := s.writePiece(req, &w, at, b[:k])
			if perr != nil || !more {
				return perr
			}
			at += int64(k)
		}
		if err != nil {
			return err
		}
	}
	var more [1]byte
	if k, _ := body.Read(more[:]); k > 0 {
		return &source.Error{Kind: source.Malformed, Detail: fmt.Sprintf("the range at byte %d brought more than the %d bytes asked for", off, n)}
	}
	return nil
}

// fillPiece reads until b is full; have of want bytes came before.
func (s *stagingPlan) fillPiece(ctx context.Context, req *rangeRequest, body io.Reader, b []byte, idle *time.Timer,
	have, want int64) (int, error) {
	got := 0
	for got < len(b) {
		began := req.beginWait()
		n, err := body.Read(b[got:])
		req.endWait(began)
		got += n
		if n > 0 {
			req.bytes.Add(int64(n))
			s.limiter.CountBytes(int64(n))
			if req.first.Load() == 0 {
				req.first.Store(int64(time.Since(req.began)))
			}
			idle.Reset(s.loader.o.Retry.Idle)
		}
		if err == nil || got == len(b) && err == io.EOF {
			continue
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return got, cancelReason(ctx,
				&source.Error{Kind: source.Malformed, Detail: fmt.Sprintf("a range ended after %d of %d bytes", have+int64(got), want)})
		}
		if source.KindOf(err) == "" {
			// The transport's text may hold the whole URL: it is dropped.
			err = &source.Error{Kind: source.Unavailable, Detail: fmt.Sprintf("the connection broke after %d of %d bytes", have+int64(got), want)}
		}
		return got, cancelReason(ctx, err)
	}
	return got, nil
}

// writePiece writes bytes of the current block and moves the request to the next block
// when it is complete. more is false if the request has nothing more to fetch.
func (s *stagingPlan) writePiece(req *rangeRequest, w **store.Writer, at int64, b []byte) (more bool, err error) {
	used, complete, err := (*w).Write(at, b)
	s.loader.counts.bytesFrom(s.from.scheme).Add(int64(used))
	s.loader.counts.wasted.Add(int64(len(b) - used))
	s.done.Add(int64(used))
	if err != nil {
		return false, err
	}
	if !complete {
		return true, nil
	}
	block := int(req.block.Load())
	req.block.Store(-1)
	if used > 0 {
		if err := s.blockArrived(blockRef{req.part, block}); err != nil {
			return false, err
		}
	}
	if req.hedge {
		return false, nil
	}
	next, _, ok := s.queue.position(req.blocks)
	if !ok || next != block+1 {
		return false, nil
	}
	*w = req.part.Writer(next)
	if from, _ := (*w).Position(); from != at+int64(len(b)) {
		// Another request is ahead in this block or completed the last one.
		return false, nil
	}
	req.block.Store(int64(next))
	return true, nil
}

// cancelReason tells a request cancelled for its slowness from one that was called
// off.
func cancelReason(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errIdle) {
		return cause
	}
	return &source.Error{Kind: source.Unavailable, Detail: errIdle.Error()}
}

// findSlow returns the requests that a second one would overtake.
func (s *requestSet) findSlow(now time.Time, limiter *rangelimit.Limiter) []*rangeRequest {
	typical, known := limiter.Typical()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*rangeRequest
	for req := range s.m {
		n, asked := req.bytes.Load(), req.totalWait(now)
		if d := (asked - req.seenWait).Seconds(); d > superviseEvery.Seconds()/2 {
			speed := float64(n-req.reported) / d
			if req.checks++; req.checks == 1 {
				req.speed = speed
			}
			req.speed += (speed - req.speed) / 2
			req.reported, req.seenWait = n, asked
		}
		block := int(req.block.Load())
		if req.hedged.Load() || block < 0 || req.checks < 2 {
			continue
		}
		off, size := req.part.Range(block)
		left := off + size - req.part.Arrived(block)
		if worthHedging(asked, req.speed, n, left, typical, known) {
			out = append(out, req)
		}
	}
	if len(s.m) >= manyRequests && len(out) > len(s.m)/4 {
		// Not single requests are slow but the whole source, or this machine
		// does not keep up with reading.
		return nil
	}
	for _, req := range out {
		req.hedged.Store(true)
	}
	return out
}

// manyRequests is how many must be in flight to tell a slow one from a slow source.
const manyRequests = 8

// beginWait and endWait measure the time spent waiting for the source: a request that
// waits for the disk is not slow.
func (r *rangeRequest) beginWait() time.Time {
	now := time.Now()
	r.waitingSince.Store(now.UnixNano())
	return now
}

func (r *rangeRequest) endWait(began time.Time) {
	r.waitingSince.Store(0)
	r.waited.Add(int64(time.Since(began)))
}

func (r *rangeRequest) totalWait(now time.Time) time.Duration {
	d := time.Duration(r.waited.Load())
	if since := r.waitingSince.Load(); since > 0 {
		d += max(0, time.Duration(now.UnixNano()-since))
	}
	return d
}

// worthHedging reports whether a second request for the left bytes of a block would
// finish well before the current one, which has waited for age, brought got bytes, and
// runs at speed. The second one's bytes are downloaded twice, so the current one must
// also be slower than usual. known is false while too few ranges were measured.
func worthHedging(age time.Duration, speed float64, got, left int64, typical rangelimit.RangeStats, known bool) bool {
	if !known {
		return age > 2*time.Second && speed < 1<<10
	}
	fresh := typical.First.Seconds() + float64(left)/typical.Rate
	complete := typical.First.Seconds() + float64(got+left)/typical.Rate
	remaining := math.Inf(1)
	if speed > 0 {
		remaining = float64(left) / speed
	}
	return remaining > 2*fresh && age.Seconds()+remaining > 2*typical.SpreadFactor*complete && age > typical.First+3*superviseEvery
}

// hedge requests again what a slow request has not brought of its block. Each byte is
// written by the first to bring it; when the block is complete the other request is
// cancelled. Blocks the slow one has not begun return to the queue.
func (s *stagingPlan) hedge(ctx context.Context, slow *rangeRequest) {
	defer slow.hedged.Store(false)
	block, ok := s.queue.truncate(slow.blocks)
	if !ok {
		return
	}
	off, size := slow.part.Range(block)
	left, had := off+size-slow.part.Arrived(block), slow.bytes.Load()
	if !s.limiter.SpendHedge(left) || s.limiter.Acquire(ctx, High, true) != nil {
		return
	}
	defer s.limiter.Release()
	s.loader.counts.hedges.Add(1)
	// Errors are ignored: the first request still runs.
	got, _, err := s.requestRange(ctx, &blockRange{part: slow.part, next: block, end: block + 1}, true)
	if err != nil {
		s.from.log.Debug("second request failed", "file", slow.part.File.Name, "block", block, "err", err)
	}
	// The budget is charged for bytes that came twice only.
	s.limiter.RefundHedge(left - min(left, max(0, got+slow.bytes.Load()-had-left)))
}

// retryDelay is the pause after attempt n (from 1); draw is from [0,1). Retry-After is
// the minimum, with jitter on top: all ranges received the same value.
func retryDelay(r Retry, n int, after time.Duration, draw float64) time.Duration {
	bound := r.Max
	if shift := n - 1; shift < 20 {
		bound = min(r.Base<<shift, r.Max)
	}
	return min(after, maxRetryAfter) + time.Duration(draw*float64(bound))
}
