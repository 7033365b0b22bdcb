package ember

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// loop owns the model and the running sequences. Other goroutines submit and withdraw
// sequences and read the gauges.
type loop struct {
	c          *loadedModel
	maxSeqs    int
	maxBatch   int
	maxQueued  int
	tokenDelay time.Duration
	metrics    *metrics

	mu       sync.Mutex
	waiting  []*sequence // FIFO, guarded by mu
	draining bool        // guarded by mu: new sequences are refused
	wake     newest.Signal

	running    []*sequence    // the loop's own, in order of admission
	spare      []*llama.Cache // for the next sequences, at most maxSpare bytes
	spareBytes int
	inputs     []llama.Input
	owners     []*sequence
	nRunning   atomic.Int64
	nCached    atomic.Int64 // positions held by running sequences
}

// maxSpare bounds the memory of unused caches.
const maxSpare = 64 << 20

var errFull = errors.New("too many requests are waiting")

// submit puts a sequence into the queue. It returns errFull or errStopped.
func (l *loop) submit(q *sequence) error {
	q.ready = newest.NewSignal()
	q.arrived = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return errStopped
	}
	// Free slots that the loop has not filled yet extend the queue.
	if free := l.maxSeqs - int(l.nRunning.Load()); len(l.waiting) >= l.maxQueued+max(free, 0) {
		return errFull
	}
	l.waiting = append(l.waiting, q)
	l.wake.Set()
	return nil
}

// withdraw removes a sequence whose client has gone.
func (l *loop) withdraw(q *sequence) {
	q.abandoned.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, q); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.wake.Set()
}

// drain refuses new sequences; the loop ends after the last one.
func (l *loop) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
	l.wake.Set()
}

func (l *loop) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// run runs batches until ctx ends or, after drain, no sequence is left. Unfinished
// sequences end with errStopped.
func (l *loop) run(ctx context.Context) {
	defer l.failAll()
	for {
		if ctx.Err() != nil {
			return
		}
		drained := l.admit()
		// releases the sequences whose client has gone
		for _, q := range slices.Clone(l.running) {
			if q.abandoned.Load() {
				l.metrics.finished("abort")
				l.release(q)
			}
		}
		if len(l.running) == 0 {
			if drained {
				return
			}
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		if l.runBatch() && l.tokenDelay > 0 {
			backoff.Sleep(ctx, l.tokenDelay)
		}
	}
}

// admit moves sequences from the queue to free slots. drained reports that the queue is
// empty and closed.
func (l *loop) admit() (drained bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 && len(l.running) < l.maxSeqs {
		q := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		l.running = append(l.running, q)
		l.begin(q)
	}
	l.nRunning.Store(int64(len(l.running)))
	return l.draining && len(l.waiting) == 0
}

func (l *loop) begin(q *sequence) {
	if n := len(l.spare); n > 0 {
		q.cache, l.spare = l.spare[n-1], l.spare[:n-1]
		l.spareBytes -= q.cache.Bytes()
	} else {
		q.cache = l.c.model.NewCache(min(len(q.prompt)+64, l.c.maxLen))
	}
	q.cache.Use(q.adapter)
	q.sampler = newSampler(q.sampling, q.seed, q.prompt)
	if q.embed {
		q.hidden = make([]float32, l.c.model.Hidden)
	}
}

// release frees the slot and cache of a sequence.
func (l *loop) release(q *sequence) {
	if i := slices.Index(l.running, q); i >= 0 {
		l.running = slices.Delete(l.running, i, i+1)
	}
	if n := q.cache.Bytes(); l.spareBytes+n <= maxSpare {
		q.cache.Reset()
		l.spare = append(l.spare, q.cache)
		l.spareBytes += n
	}
	q.cache = nil
	l.nRunning.Store(int64(len(l.running)))
}

// failAll ends every sequence with errStopped.
func (l *loop) failAll() {
	l.mu.Lock()
	l.draining = true
	remaining := slices.Concat(l.running, l.waiting)
	l.running, l.waiting = nil, nil
	l.mu.Unlock()
	l.nRunning.Store(0)
	for _, q := range remaining {
		q.publish(func(p *piece) { p.err = errStopped })
	}
}

// runBatch runs one batch: a token of each generating sequence, and pieces of prompts,
// oldest first. It reports whether a token was generated.
func (l *loop) runBatch() bool {
	l.inputs, l.owners = l.inputs[:0], l.owners[:0]
	freeSlots := l.maxBatch
	for _, q := range l.running {
		if q.prefilled == len(q.prompt) {
			l.addInput(q, []int{q.next}, true)
			freeSlots--
		}
	}
	for _, q := range l.running {
		if freeSlots <= 0 {
			break
		}
		if q.prefilled < len(q.prompt) {
			n := min(freeSlots, len(q.prompt)-q.prefilled)
			l.addInput(q, q.prompt[q.prefilled:q.prefilled+n], q.prefilled+n == len(q.prompt) && !q.embed)
			q.prefilled += n
			freeSlots -= n
		}
	}
	l.c.model.Forward(l.inputs)
	generated, cached := false, 0
	now := time.Now()
	for i, q := range l.owners {
		cached += q.cache.Len()
		switch {
		case l.inputs[i].Logits:
			l.sampleToken(q, l.inputs[i].Out, now)
			generated = true
		case q.embed && q.prefilled == len(q.prompt):
			l.finishEmbedding(q, now)
		}
	}
	l.nCached.Store(int64(cached))
	return generated
}

func (l *loop) addInput(q *sequence, tokens []int, logits bool) {
	l.inputs = append(l.inputs, llama.Input{Cache: q.cache, Tokens: tokens, Logits: logits, Hidden: q.hidden})
	l.owners = append(l.owners, q)
}

func (l *loop) finishEmbedding(q *sequence, now time.Time) {
	l.metrics.prompt.Add(int64(len(q.prompt)))
	l.metrics.finished("stop")
	l.metrics.e2e.observe(now.Sub(q.arrived).Seconds())
	for i := range q.hidden {
		q.hidden[i] /= float32(len(q.prompt))
	}
	l.release(q)
	q.publish(func(p *piece) { p.finish, p.hidden = "stop", q.hidden })
}

// sampleToken samples the next token of a sequence and ends the sequence if it was the
// last.
func (l *loop) sampleToken(q *sequence, scores []float32, now time.Time) {
	m := l.metrics
	if !q.started {
		q.started = true
		m.prompt.Add(int64(len(q.prompt)))
		m.first.observe(now.Sub(q.arrived).Seconds())
		q.publish(func(*piece) {}) // the head of a stream may be sent
	}
	norm, top := 0.0, []choice(nil)
	if q.logprobs >= 0 {
		norm, top = logprobs(scores, q.logprobs)
	}
	early := q.generated < q.minTokens
	if early {
		for _, id := range slices.Concat(l.c.eos, q.stopIDs) {
			if id >= 0 && id < len(scores) {
				scores[id] = float32(math.Inf(-1))
			}
		}
	}
	raw := scores
	if q.logprobs >= 0 && q.sampler.adjusts() {
		raw = slices.Clone(scores)
	}
	id := q.sampler.next(scores)
	q.generated++
	q.next = id
	m.generated.Add(1)

	var stop any
	finish, mark := "", false
	switch {
	case slices.Contains(q.stopIDs, id):
		finish, stop, mark = "stop", id, true
	case !q.ignoreEOS && slices.Contains(l.c.eos, id):
		finish, mark = "stop", true
	}
	if q.logprobs >= 0 && !mark {
		q.scores = append(q.scores, scored{id, float64(raw[id]) - norm, top})
	}
	out := ""
	if !mark && !l.c.tok.Special(id) {
		out = q.text.push(l.c.tok.Bytes(id), !early)
		if q.text.stopString != "" {
			finish, stop = "stop", q.text.stopString
		}
	}
	if finish == "" && (q.generated >= q.maxTokens || len(q.prompt)+q.generated >= l.c.maxLen) {
		finish = "length"
	}
	if finish != "" && q.text.stopString == "" {
		out += q.text.end()
	}
	if finish != "" {
		m.finished(finish)
		m.e2e.observe(now.Sub(q.arrived).Seconds())
		l.release(q)
	}
	if out == "" && finish == "" {
		return
	}
	done := q.scores
	q.scores = nil
	q.publish(func(p *piece) {
		p.text += out
		p.scores = append(p.scores, done...)
		p.generated, p.finish, p.stop = q.generated, finish, stop
	})
}
