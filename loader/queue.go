package loader

import (
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/store"
)

// job is one block to fetch.
type job struct {
	part  *store.Part
	block int
}

// run is a stretch of blocks of one file that one request brings. The queue
// owns next and end: others may take over what the run has not reached.
type run struct {
	part      *store.Part
	next, end int // of blocks
}

// queue says which blocks are next: those a reader waits for, then the rest in
// order. Blocks that another node is to bring stand in the same order and are
// taken by nextPeer.
type queue struct {
	peer func(job) bool // the block is another node's to bring; nil for none
	take func(job)      // this node brings it from the source; nil with peer

	mu      sync.Mutex // guards all below
	order   []job
	low     int          // order before it is all taken
	barren  time.Time    // when nothing in order was the source's
	urgent  []job        // readers wait for these
	again   []job        // given back: before all others, from the source
	open    map[job]bool // not taken
	runs    []*run       // under way
	lent    int          // taken by nextPeer and not back yet
	pending int          // parts that another staging brings
	changed chan struct{}
}

func newQueue() *queue { return &queue{open: make(map[job]bool), changed: make(chan struct{})} }

// fill sets what is missing of parts: the first block of every file before the
// second of any.
func (q *queue) fill(parts []*store.Part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order, q.low, q.barren = nil, 0, time.Time{}
	add := func(p *store.Part, i int) {
		if j := (job{p, i}); !p.Has(i) {
			q.open[j] = true
			q.order = append(q.order, j)
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
	q.tell()
}

// await says that n parts are another staging's to bring.
func (q *queue) await(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending += n
}

// settled says that one of them is here, or to be brought from the source
// after all.
func (q *queue) settled(p *store.Part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending--
	for i := range p.Blocks() {
		if j := (job{p, i}); !p.Has(i) {
			q.open[j] = true
			q.again = append(q.again, j)
		}
	}
	q.tell()
}

// tell wakes who waits for a change; the caller holds mu.
func (q *queue) tell() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// wait is closed at the next change.
func (q *queue) wait() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.changed
}

// over reports whether nothing is left to take and nothing under way.
func (q *queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.open) == 0 && len(q.runs) == 0 && q.lent == 0 && q.pending == 0
}

// hurry puts a block in front; where a run under way has it before it, the run
// ends there.
func (q *queue) hurry(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open[j] {
		for _, r := range q.runs {
			if r.part == j.part && r.next < j.block && j.block < r.end {
				q.giveBack(r, j.block)
			}
		}
	}
	if q.open[j] && !slices.Contains(q.urgent, j) {
		q.urgent = append(q.urgent, j)
		q.tell()
	}
}

// near is how far ahead of a reader that waits the next block is looked for.
const near = 16

// soon has what follows block i of a file, and nobody has taken yet, taken
// before the rest: who reads on waits for it next. Runs under way are left
// alone.
func (q *queue) soon(p *store.Part, i int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for b := i + 1; b < min(i+near, p.Blocks()); b++ {
		j := job{p, b}
		if !q.open[j] || q.peer != nil && q.peer(j) {
			continue
		}
		if len(q.again) == 0 || q.again[0] != j {
			q.again = slices.Insert(q.again, 0, j)
			q.tell()
		}
		return
	}
}

// giveBack ends a run before block at; the caller holds mu.
func (q *queue) giveBack(r *run, at int) {
	for i := at; i < r.end; i++ {
		j := job{r.part, i}
		q.open[j] = true
		q.again = append(q.again, j)
	}
	r.end = min(r.end, at)
	q.tell()
}

// nextUrgent takes a block that a reader waits for.
func (q *queue) nextUrgent() *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pop(&q.urgent, 1)
}

// hasUrgent reports whether a reader waits for a block that nobody fetches.
func (q *queue) hasUrgent() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.urgent, func(j job) bool { return q.open[j] })
}

// next takes up to most blocks for the source. When none is left it takes over
// half of what the run with the most before it has not reached.
func (q *queue) next(most int) *run {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.pop(&q.urgent, 1); r != nil {
		return r
	}
	if r := q.pop(&q.again, most); r != nil {
		return r
	}
	if j, ok := q.find(false); ok {
		return q.start(j, most)
	}
	var long *run
	for _, r := range q.runs {
		if r.end-r.next > 2 && (long == nil || r.end-r.next > long.end-long.next) {
			long = r
		}
	}
	if long != nil {
		q.giveBack(long, long.next+(long.end-long.next+1)/2)
		return q.pop(&q.again, most)
	}
	return nil
}

// longRun reports whether next would find something to take over.
func (q *queue) longRun() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.runs, func(r *run) bool { return r.end-r.next > 2 })
}

// nextPeer takes a block that another node is to bring.
func (q *queue) nextPeer() (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.peer == nil {
		return job{}, false
	}
	j, ok := q.find(true)
	if ok {
		delete(q.open, j)
		q.lent++
	}
	return j, ok
}

// searchEvery is how often all that is left is looked through for a block of the
// source's when there was none: whose a block is changes as nodes come and go.
const searchEvery = 50 * time.Millisecond

// find is the first block left in order that is another node's, or is not; the
// caller holds mu.
func (q *queue) find(others bool) (job, bool) {
	for q.low < len(q.order) && !q.open[q.order[q.low]] {
		q.low++
	}
	if q.peer == nil {
		if q.low < len(q.order) {
			return q.order[q.low], true
		}
		return job{}, false
	}
	if !others && time.Since(q.barren) < searchEvery {
		return job{}, false
	}
	for _, j := range q.order[q.low:] {
		if q.open[j] && q.peer(j) == others {
			return j, true
		}
	}
	if !others {
		q.barren = time.Now()
	}
	return job{}, false
}

// donePeer ends what nextPeer began; what was not brought is the source's.
func (q *queue) donePeer(j job, brought bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lent--
	if !brought {
		q.open[j] = true
		q.again = append(q.again, j)
	}
	q.tell()
}

func (q *queue) pop(from *[]job, most int) *run {
	for len(*from) > 0 {
		j := (*from)[0]
		*from = (*from)[1:]
		if q.open[j] {
			return q.start(j, most)
		}
	}
	return nil
}

// start takes j and what follows it in the file.
func (q *queue) start(j job, most int) *run {
	r := &run{part: j.part, next: j.block, end: j.block}
	for r.end-r.next < max(1, most) {
		k := job{j.part, r.end}
		if !q.open[k] || r.end > r.next && q.peer != nil && q.peer(k) {
			break
		}
		delete(q.open, k)
		if q.take != nil {
			q.take(k)
		}
		r.end++
		if k.block == 0 {
			break // looked into before more of the file is asked for
		}
	}
	q.runs = append(q.runs, r)
	return r
}

// at is the block a run is at; false when it has none left.
func (q *queue) at(r *run) (block, end int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r.next < r.end && r.part.Has(r.next) {
		r.next++
	}
	return r.next, r.end, r.next < r.end
}

// cut ends a run with the block it is at; the others may be taken anew.
func (q *queue) cut(r *run) (block int, ok bool) {
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

// done ends a run; what it did not bring is given back.
func (q *queue) done(r *run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r.next < r.end && r.part.Has(r.next) {
		r.next++
	}
	if r.next < r.end {
		q.giveBack(r, r.next)
	}
	q.runs = slices.DeleteFunc(q.runs, func(o *run) bool { return o == r })
	q.tell()
}

// left is how many blocks nobody has taken.
func (q *queue) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.open)
}
