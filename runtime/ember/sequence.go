package ember

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// sequence is one prompt on its way through the loop.
//
// Made by a handler and not changed by it after submit; the fields of the second
// group belong to the loop, those of the third to both, under mu.
type sequence struct {
	prompt    []int
	sampling  sampling
	seed      uint64
	maxTokens int
	minTokens int
	ignoreEOS bool
	stopIDs   []int
	logprobs  int // how many rivals to report; -1: no logprobs at all
	embed     bool
	arrived   time.Time

	cache   *llama.Cache
	fed     int // tokens of prompt that went through the model
	next    int // the token that goes in next, once the prompt is through
	made    int // tokens generated
	sampler *sampler
	text    stopFilter
	scores  []scored  // of tokens whose text is held back
	hidden  []float32 // embed: the sum so far
	started bool      // the first token came

	abandoned atomic.Bool // its client has gone
	mu        sync.Mutex
	out       piece
	ready     chan struct{} // holds one; filled when out grew
}

// piece is what a sequence made since its handler last looked.
type piece struct {
	text   string
	scores []scored
	made   int    // tokens generated so far, all told
	finish string // "stop", "length", or "" while it goes on
	stop   any    // the stop string or token id that ended it, nil if none
	err    error  // it ended without an answer
	hidden []float32
}

func (p *piece) over() bool { return p.finish != "" || p.err != nil }

// errStopped ends sequences that are cut off by the engine's end.
var errStopped = errors.New("the engine is shutting down")

// publish leaves something for the handler; add is called with the lock held.
func (q *sequence) publish(add func(p *piece)) {
	q.mu.Lock()
	add(&q.out)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// takePiece returns what was left since the last call.
func (q *sequence) takePiece() piece {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.out
	q.out.text, q.out.scores = "", nil
	return p
}
