package loader

import (
	"context"
	"errors"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/rangelimit"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// stagingPlan is one listing with its parts, and fetches and verifies them. A changed source
// makes another.
type stagingPlan struct {
	loader     *Loader
	from       *stagingSource
	progress   *progressFeed
	priorities *priorities // of the staging's holders
	ingest     *store.Ingest

	key      string // store.PlanKey: equal on all nodes
	names    []string
	swarm    Swarm // nil without peers
	parts    map[string]*store.Part
	queue    *queue
	limiter  *rangelimit.Limiter
	stale    chan struct{} // closed when the source has changed
	complete chan struct{} // closed when every block of the round is here
	toFlush  chan blockRef // blocks to write back to the disk
	done     atomic.Int64  // bytes that are here
	// corrupted: blocks were dropped that a reader may have seen.
	corrupted atomic.Bool
	// peerParts holds the parts with blocks from other nodes.
	peerParts sync.Map

	requests requestSet

	mu sync.Mutex // guards distrusted
	// distrusted are the parts without a digest of the source that have blocks of nodes
	// which sent other bytes than the source's.
	distrusted map[*store.Part]bool
}

func newStagingPlan(j *stagingJob, in *store.Ingest, files []source.File) *stagingPlan {
	sp := &stagingPlan{loader: j.loader, from: &j.from, progress: j.progress, priorities: &j.priorities, ingest: in,
		key: store.PlanKey(j.locationKey, files), limiter: j.loader.limiter(j.from.location), queue: newQueue(), stale: make(chan struct{}),
		parts: make(map[string]*store.Part), requests: requestSet{m: make(map[*rangeRequest]bool)}, distrusted: make(map[*store.Part]bool)}
	for _, p := range in.Parts {
		sp.parts[p.File.Name] = p
		sp.names = append(sp.names, p.File.Name)
	}
	return sp
}

// joinSwarm routes the blocks that other nodes own to them.
func (s *stagingPlan) joinSwarm(c Swarm) {
	s.swarm = c
	s.queue.isPeers = func(ref blockRef) bool { return !c.Owns(describeBlock(ref)) }
	s.queue.onTake = func(ref blockRef) { c.Claim(describeBlock(ref)) }
}

func describeBlock(ref blockRef) Block {
	off, n := ref.part.Range(ref.block)
	return Block{File: ref.part.File, Index: ref.block, Offset: off, Length: n}
}

// fetchAll fetches what is missing and seals every part. A file that does not match
// the source's digest is fetched once more.
func (s *stagingPlan) fetchAll(ctx context.Context) error {
	for round := 0; ; round++ {
		left := functions.Filter(s.ingest.Parts, func(p *store.Part) bool { return p.Tree() == "" })
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			// An earlier attempt may have brought a bad first block.
			if p.Blocks() > 0 && p.Has(0) {
				if err := checkFirstBlock(blockRef{p, 0}, s.names); err != nil {
					return source.WithFile(err, p.File.Name)
				}
			}
		}
		verdicts, err := s.fetchRound(ctx, left)
		if err != nil {
			return err
		}
		for i, v := range verdicts {
			p := left[i]
			if v == verdictGood {
				continue
			}
			s.corrupted.Store(true)
			switch {
			case v == verdictBlockLost && round >= maxCorruptRounds:
				return source.Fail(source.Broken, "the disk gives back other bytes than were written",
					"look after the disk and the memory of this machine").At("", p.File.Name)
			case v == verdictBlockLost:
				s.from.log.Warn("a block was not read back as it was written, fetching it again", "file", p.File.Name)
			case round > 0:
				return source.Fail(source.Digest, "came twice with bytes that are not those of the digest the source keeps",
					"upload it again").At("", p.File.Name)
			default:
				s.from.log.Warn("file differs from its digest, fetching it again", "file", p.File.Name)
				if err := s.reset(p); err != nil {
					return err
				}
			}
			s.progress.update(func(g *Progress) { g.State = Fetching })
		}
		if err := s.dropDistrusted(); err != nil {
			return err
		}
	}
}

// maxCorruptRounds bounds the rounds in which the disk returns other bytes than were
// written.
const maxCorruptRounds = 3

// fetchRound fetches the missing blocks of left, verifying and flushing beside, and
// returns a verdict for each part.
func (s *stagingPlan) fetchRound(ctx context.Context, left []*store.Part) ([]verdict, error) {
	// Shared parts last, in the caller's list too: a digest goroutine must not wait for another staging
	// that waits for this one.
	another := func(p *store.Part) bool { return p.OtherWriter }
	shared := functions.Filter(left, another)
	own := slices.DeleteFunc(left, another)
	s.queue.fill(own)
	left = append(own, shared...)
	s.queue.awaitShared(len(shared))
	s.complete, s.toFlush = make(chan struct{}), make(chan blockRef, 64)
	verdicts := make([]verdict, len(left))
	var turn atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.startRanges(ctx, group, true) })
	group.Go(func() error {
		err := s.startRanges(ctx, group, false)
		if err == nil {
			close(s.complete)
		}
		return err
	})
	group.Go(func() error { return s.supervise(ctx, group) })
	group.Go(func() error { return s.flushBlocks(ctx) })
	for _, p := range shared {
		group.Go(func() error { return s.awaitShared(ctx, p) })
	}
	if s.swarm != nil {
		for range maxPeerRequests {
			group.Go(func() error { return s.fetchFromPeers(ctx) })
		}
	}
	for i := range min(2*hashers(), len(left)) {
		group.Go(func() error {
			if i >= hashers() {
				// The download needs these cores until it is complete.
				if err := awaitClosed(ctx, s.complete); err != nil {
					return err
				}
			}
			for {
				i := int(turn.Add(1)) - 1
				if i >= len(left) {
					return nil
				}
				var err error
				if verdicts[i], err = s.verify(ctx, left[i]); err != nil {
					return err
				}
				if verdicts[i] == verdictMismatch && s.swarm != nil {
					s.excludeSenders(left[i].File.Name) // now, not when the round ends
				}
			}
		})
	}
	err := group.Wait()
	s.reportProgress()
	return verdicts, err
}

// awaitShared waits for a part that another staging brings, or fetches it if that one
// gave up.
func (s *stagingPlan) awaitShared(ctx context.Context, p *store.Part) error {
	for {
		if !backoff.Sleep(ctx, claimPoll) {
			return context.Cause(ctx)
		}
		ok, err := s.ingest.PollShared(ctx, p)
		if err != nil {
			return source.WithFile(err, p.File.Name)
		}
		if ok {
			have := p.Bytes()
			s.done.Add(have)
			if p.Linked {
				s.loader.counts.reused.Add(have)
			}
			s.queue.sharedArrived(p)
			return nil
		}
	}
}

// hashers is how many files are digested at once: half of the cores, so that the
// download is not slowed.
func hashers() int { return max(1, min(8, runtime.GOMAXPROCS(0)/2)) }

// startRanges starts a range whenever the limiter allows one more, until no block is missing.
// Urgent ranges are of blocks that readers wait for, if need be beyond the limit.
func (s *stagingPlan) startRanges(ctx context.Context, group *errgroup.Group, urgent bool) error {
	q := s.queue
	for {
		changed := q.changes()
		if q.finished() {
			return nil
		}
		if urgent && q.hasUrgent() || !urgent && (q.remaining() > 0 || q.longRun()) {
			if err := s.limiter.Acquire(ctx, s.priorities.highest(), urgent); err != nil {
				return err
			}
			r := q.nextUrgent()
			if r == nil && !urgent {
				r = q.next(s.blocksPerRequest())
			}
			if r != nil {
				group.Go(func() error { return s.downloadRange(ctx, r) })
				continue
			}
			s.limiter.Release()
		}
		if err := s.waitForChange(ctx, changed); err != nil {
			return err
		}
	}
}

// waitForChange waits for a change of the queue. With peers it also polls: ownership
// of the remaining blocks changes without one.
func (s *stagingPlan) waitForChange(ctx context.Context, changed <-chan struct{}) error {
	var again <-chan time.Time
	if s.swarm != nil {
		again = time.After(researchEvery)
	}
	select {
	case <-changed:
	case <-again:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

const maxRange = 64 << 20

// blocksPerRequest grows with the time to the first byte, and shrinks towards the end
// so that all ranges finish together.
func (s *stagingPlan) blocksPerRequest() int {
	first, rate, ok := s.limiter.Expected()
	if !ok {
		return 1
	}
	n := int(rangeBytes(first, rate, s.loader.o.Block, maxRange) / s.loader.o.Block)
	return max(1, min(n, s.queue.remaining()/(2*s.limiter.Limit())))
}

// rangeBytes is how many bytes one request should ask for, in whole blocks, so that
// the wait for its first byte is 1/20 of it.
func rangeBytes(first time.Duration, rate float64, block, maximum int64) int64 {
	n := int64(20*first.Seconds()*rate) / block * block
	return max(block, min(n, maximum/block*block))
}

// superviseEvery is the interval at which ranges in flight are measured.
const superviseEvery = 50 * time.Millisecond

// supervise measures the ranges in flight, reports progress, and hedges slow requests.
func (s *stagingPlan) supervise(ctx context.Context, group *errgroup.Group) error {
	t := time.NewTicker(superviseEvery)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			s.limiter.Measure(now)
			s.reportProgress()
			for _, req := range s.requests.findSlow(now, s.limiter) {
				group.Go(func() error { s.hedge(ctx, req); return nil })
			}
		case <-s.complete:
			s.progress.update(func(p *Progress) { p.State, p.Done, p.Problem = Verifying, s.done.Load(), "" })
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *stagingPlan) reportProgress() {
	done := s.done.Load()
	if s.progress.update(func(p *Progress) {
		if done > p.Done {
			p.Problem = ""
		}
		p.Done = done
	}) {
		p := s.progress.now()
		s.ingest.SetProgress(p.Done, p.Total)
	}
}

// flushBlocks writes blocks back to the disk as they arrive. It is separate from the
// ranges: it may wait for the disk, and must not slow the download.
func (s *stagingPlan) flushBlocks(ctx context.Context) error {
	for {
		select {
		case ref := <-s.toFlush:
			ref.part.StartWrite(ref.block)
		case <-s.complete:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// blockArrived is called once for every block that came in.
func (s *stagingPlan) blockArrived(ref blockRef) error {
	s.requests.cancel(ref)
	select {
	case s.toFlush <- ref:
	default:
	}
	return source.WithFile(checkFirstBlock(ref, s.names), ref.part.File.Name)
}

// checkFirstBlock validates what the first block holds, before the rest is downloaded.
func checkFirstBlock(ref blockRef, names []string) error {
	p := ref.part
	if ref.block != 0 {
		return nil
	}
	_, first := p.Range(0)
	if first == p.File.Size {
		return validateFile(p.File.Name, p, p.File.Size, names)
	}
	if strings.EqualFold(path.Ext(p.File.Name), ".safetensors") && first >= 8 {
		var head [8]byte
		if _, err := p.ReadAt(head[:], 0); err != nil {
			return &source.Error{Kind: source.Broken, Detail: "cannot be read back", Err: err}
		}
		end, err := headercheck.HeaderEnd(head, p.File.Size)
		if err != nil {
			return err
		}
		if end > first {
			return nil
		}
		return headercheck.Safetensors(p, p.File.Size)
	}
	return nil
}

// maxPeerRequests bounds the blocks requested from other nodes at once.
const maxPeerRequests = 8

// fetchFromPeers fetches blocks from other nodes until none is missing.
func (s *stagingPlan) fetchFromPeers(ctx context.Context) error {
	for {
		changed := s.queue.changes()
		ref, ok := s.queue.nextPeer()
		if !ok {
			if s.queue.finished() {
				return nil
			}
			if err := s.waitForChange(ctx, changed); err != nil {
				return err
			}
			continue
		}
		fetched, err := s.fetchFromPeer(ctx, ref)
		if err == nil && fetched {
			if err = s.blockArrived(ref); err != nil && source.KindOf(err) != source.Broken {
				// A bad peer must not fail the staging: the source is asked.
				s.from.log.Warn("block from another node is invalid, fetching it from the source", "file", ref.part.File.Name, "err", err)
				s.corrupted.Store(true)
				s.excludeSenders(ref.part.File.Name)
				ref.part.DropBlock(ref.block)
				_, n := ref.part.Range(ref.block)
				s.done.Add(-n)
				fetched, err = false, nil
			}
		}
		s.queue.donePeer(ref, fetched)
		if err != nil {
			return err
		}
	}
}

// fetchFromPeer fetches a block from another node. It returns false if no node has it
// or its checksum fails; then nothing of it is kept.
func (s *stagingPlan) fetchFromPeer(ctx context.Context, ref blockRef) (bool, error) {
	b := describeBlock(ref)
	body, sum, ok := s.swarm.Fetch(ctx, b)
	if !ok {
		return false, nil
	}
	defer body.Close()
	piece, err := s.loader.buffers.get(ctx)
	if err != nil {
		return false, err
	}
	defer s.loader.buffers.put(piece)
	defer context.AfterFunc(ctx, func() { body.Close() })()
	idle := time.AfterFunc(s.loader.o.Retry.Idle, func() { body.Close() })
	defer idle.Stop()
	w := ref.part.Writer(ref.block)
	s.done.Add(-w.Reset())
	w.Expect(sum)
	at, end := w.Position()
	var put int64
	complete := false
	for at < end && err == nil {
		b := piece[at%int64(len(piece)):]
		b = b[:min(int64(len(b)), end-at)]
		var n, used int
		for n < len(b) && err == nil {
			var k int
			if k, err = body.Read(b[n:]); k > 0 {
				idle.Reset(s.loader.o.Retry.Idle)
			}
			n += k
		}
		if n == 0 {
			continue
		}
		var werr error
		used, complete, werr = w.Write(at, b[:n])
		at += int64(n)
		s.done.Add(int64(used))
		put += int64(used)
		if werr != nil && !errors.Is(werr, store.ErrSum) {
			return false, werr
		}
		if werr != nil {
			err = werr
		}
	}
	if complete {
		s.loader.counts.bytesFrom(peerScheme).Add(b.Length)
		s.peerParts.Store(ref.part, true)
		return true, nil
	}
	w.Reset()
	s.done.Add(-put)
	s.loader.counts.wasted.Add(put)
	s.from.log.Debug("block from another node failed its checksum", "file", b.File.Name, "block", b.Index, "err", err)
	return false, nil
}
