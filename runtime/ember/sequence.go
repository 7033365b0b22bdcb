package ember

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// sequence is one prompt and its generated tokens. The fields of the first group are not
// changed after submit, those of the second are owned by the loop, those of the third
// are guarded by mu.
type sequence struct {
	prompt    []int
	sampling  sampling
	seed      uint64
	maxTokens int
	minTokens int
	ignoreEOS bool
	stopIDs   []int
	logprobs  int // how many alternatives to report; -1: no logprobs
	embed     bool
	adapter   *llama.Adapter // nil for the base
	arrived   time.Time

	cache     *llama.Cache
	prefilled int // tokens of the prompt that the model has processed
	next      int // input of the next pass, after the prompt
	generated int // tokens generated
	sampler   *sampler
	text      stopFilter
	scores    []scored  // of tokens whose text is not published yet
	hidden    []float32 // embed: the sum so far
	started   bool      // the first token was generated

	abandoned atomic.Bool // its client has gone
	mu        sync.Mutex
	out       piece
	ready     newest.Signal // set when out has news
}

// piece is what a sequence generated since the last takePiece.
type piece struct {
	text      string
	scores    []scored
	generated int    // tokens generated so far
	finish    string // "stop", "length", or "" before the end
	stop      any    // the stop string or token id that ended it, nil if none
	err       error  // it failed
	hidden    []float32
}

func (p *piece) over() bool { return p.finish != "" || p.err != nil }

// errStopped ends sequences when the engine shuts down, and refuses others.
var errStopped = errors.New("the engine is shutting down")

// publish changes the piece for the handler; add is called with the lock held.
func (s *sequence) publish(add func(p *piece)) {
	s.mu.Lock()
	add(&s.out)
	s.mu.Unlock()
	s.ready.Set()
}

// takePiece returns what was generated since the last call.
func (s *sequence) takePiece() piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.out
	s.out.text, s.out.scores = "", nil
	return p
}
