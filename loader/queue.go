package loader

import (
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/store"
)

type blockRef struct {
	part  *store.Part
	block int
}

// blockRange is consecutive blocks of one file that one request fetches. The queue
// owns next and end: others may take over blocks that the request has not reached.
type blockRange struct {
	part      *store.Part
	next, end int // of blocks
}

// queue orders the missing blocks: those a reader waits for, then returned ones, then
// the rest in order. Blocks that other nodes own are taken by nextPeer.
type queue struct {
	isPeers func(blockRef) bool // another node owns the block; nil without peers
	onTake  func(blockRef)      // called when a block is taken for the source; nil without peers

	mu          sync.Mutex // guards all below
	order       []blockRef
	low         int               // all before this index of order is taken
	noneFoundAt time.Time         // last search of order that found no block for the source
	urgent      []blockRef        // readers wait for these
	returned    []blockRef        // returned by requests: next, from the source
	untaken     map[blockRef]bool // not taken
	active      []*blockRange     // under way
	atPeers     int               // taken by nextPeer, not done
	sharedParts int               // parts that another staging fetches
	changed     chan struct{}
}

func newQueue() *queue { return &queue{untaken: make(map[blockRef]bool), changed: make(chan struct{})} }

// fill adds what is missing of parts: the first block of every file before the second
// of any.
func (q *queue) fill(parts []*store.Part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order, q.low, q.noneFoundAt = nil, 0, time.Time{}
	add := func(p *store.Part, i int) {
		if ref := (blockRef{p, i}); !p.Has(i) {
			q.untaken[ref] = true
			q.order = append(q.order, ref)
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
	q.notify()
}

// awaitShared adds n parts that another staging fetches.
func (q *queue) awaitShared(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sharedParts += n
}

// sharedArrived ends the wait for a shared part; what is missing of it is fetched from
// the source.
func (q *queue) sharedArrived(p *store.Part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sharedParts--
	for i := range p.Blocks() {
		if ref := (blockRef{p, i}); !p.Has(i) {
			q.untaken[ref] = true
			q.returned = append(q.returned, ref)
		}
	}
	q.notify()
}

// notify wakes waiters of changes; the caller holds mu.
func (q *queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// changes returns a channel that is closed at the next change.
func (q *queue) changes() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changed
}

// finished reports whether no block is left to take or in flight.
func (q *queue) finished() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.untaken) == 0 && len(q.active) == 0 && q.atPeers == 0 && q.sharedParts == 0
}

// prioritize puts a block first. A range in flight that would reach it later is cut
// before it.
func (q *queue) prioritize(ref blockRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.untaken[ref] {
		for _, r := range q.active {
			if r.part == ref.part && r.next < ref.block && ref.block < r.end {
				q.giveBack(r, ref.block)
			}
		}
	}
	if q.untaken[ref] && !slices.Contains(q.urgent, ref) {
		q.urgent = append(q.urgent, ref)
		q.notify()
	}
}

// readAheadBlocks is how far ahead of a waiting reader prefetchAfter looks.
const readAheadBlocks = 16

// prefetchAfter puts the next untaken block after block i first: a sequential reader
// needs it next. Ranges in flight are left alone.
func (q *queue) prefetchAfter(p *store.Part, i int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for b := i + 1; b < min(i+readAheadBlocks, p.Blocks()); b++ {
		ref := blockRef{p, b}
		if !q.untaken[ref] || q.isPeers != nil && q.isPeers(ref) {
			continue
		}
		if len(q.returned) == 0 || q.returned[0] != ref {
			q.returned = slices.Insert(q.returned, 0, ref)
			q.notify()
		}
		return
	}
}

// giveBack ends a range before block at; the caller holds mu.
func (q *queue) giveBack(r *blockRange, at int) {
	for i := at; i < r.end; i++ {
		ref := blockRef{r.part, i}
		q.untaken[ref] = true
		q.returned = append(q.returned, ref)
	}
	r.end = min(r.end, at)
	q.notify()
}

// nextUrgent takes a block that a reader waits for.
func (q *queue) nextUrgent() *blockRange {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pop(&q.urgent, 1)
}

// hasUrgent reports whether a reader waits for an untaken block.
func (q *queue) hasUrgent() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.urgent, func(ref blockRef) bool { return q.untaken[ref] })
}

// next takes up to most blocks for the source. If none is left it takes over half of
// the longest remaining range.
func (q *queue) next(maximum int) *blockRange {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.pop(&q.urgent, 1); r != nil {
		return r
	}
	if r := q.pop(&q.returned, maximum); r != nil {
		return r
	}
	if ref, ok := q.find(false); ok {
		return q.takeRange(ref, maximum)
	}
	var long *blockRange
	for _, r := range q.active {
		if r.end-r.next > 2 && (long == nil || r.end-r.next > long.end-long.next) {
			long = r
		}
	}
	if long != nil {
		q.giveBack(long, long.next+(long.end-long.next+1)/2)
		return q.pop(&q.returned, maximum)
	}
	return nil
}

// longRun reports whether next could take over part of a range.
func (q *queue) longRun() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.active, func(r *blockRange) bool { return r.end-r.next > 2 })
}

// nextPeer takes a block that another node owns.
func (q *queue) nextPeer() (blockRef, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isPeers == nil {
		return blockRef{}, false
	}
	ref, ok := q.find(true)
	if ok {
		delete(q.untaken, ref)
		q.atPeers++
	}
	return ref, ok
}

// researchEvery is the interval at which the remaining blocks are searched for one of
// the source after a search found none: ownership changes as nodes come and go.
const researchEvery = 50 * time.Millisecond

// find returns the first untaken block in order that other nodes own, or do not; the
// caller holds mu.
func (q *queue) find(others bool) (blockRef, bool) {
	for q.low < len(q.order) && !q.untaken[q.order[q.low]] {
		q.low++
	}
	if q.isPeers == nil {
		if q.low < len(q.order) {
			return q.order[q.low], true
		}
		return blockRef{}, false
	}
	if !others && time.Since(q.noneFoundAt) < researchEvery {
		return blockRef{}, false
	}
	for _, ref := range q.order[q.low:] {
		if q.untaken[ref] && q.isPeers(ref) == others {
			return ref, true
		}
	}
	if !others {
		q.noneFoundAt = time.Now()
	}
	return blockRef{}, false
}

// donePeer ends what nextPeer began; a block that did not come is fetched from the
// source.
func (q *queue) donePeer(ref blockRef, fetched bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.atPeers--
	if !fetched {
		q.untaken[ref] = true
		q.returned = append(q.returned, ref)
	}
	q.notify()
}

func (q *queue) pop(from *[]blockRef, maximum int) *blockRange {
	for len(*from) > 0 {
		ref := (*from)[0]
		*from = (*from)[1:]
		if q.untaken[ref] {
			return q.takeRange(ref, maximum)
		}
	}
	return nil
}

// takeRange takes ref and the blocks after it.
func (q *queue) takeRange(ref blockRef, maximum int) *blockRange {
	r := &blockRange{part: ref.part, next: ref.block, end: ref.block}
	for r.end-r.next < max(1, maximum) {
		k := blockRef{ref.part, r.end}
		if !q.untaken[k] || r.end > r.next && q.isPeers != nil && q.isPeers(k) {
			break
		}
		delete(q.untaken, k)
		if q.onTake != nil {
			q.onTake(k)
		}
		r.end++
		if k.block == 0 {
			break // it is validated before more of the file is requested
		}
	}
	q.active = append(q.active, r)
	return r
}

// position is the current block of a range; false if it has none left.
func (q *queue) position(r *blockRange) (block, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r.next < r.end && r.part.Has(r.next) {
		r.next++
	}
	return r.next, r.end, r.next < r.end
}

// truncate ends a range after its current block; the others are returned.
func (q *queue) truncate(r *blockRange) (block int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.next >= r.end {
		return 0, false
	}
	if r.next+1 < r.end {
		q.giveBack(r, r.next+1)
	}
	return r.next, true
}

// finish ends a range; blocks it did not bring are returned.
func (q *queue) finish(r *blockRange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r.next < r.end && r.part.Has(r.next) {
		r.next++
	}
	if r.next < r.end {
		q.giveBack(r, r.next)
	}
	q.active = slices.DeleteFunc(q.active, func(o *blockRange) bool { return o == r })
	q.notify()
}

// remaining is how many blocks are untaken.
func (q *queue) remaining() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.untaken)
}
