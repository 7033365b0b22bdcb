package forkserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	// CheckEvery is how often an owner asks a parent for its facts.
	CheckEvery = 10 * time.Second
	// ImportTimeout bounds the imports of a parent.
	ImportTimeout = 5 * time.Minute

	maxForks     = 500 // after these a parent is replaced: a bound on leaks and fragmentation
	factsTimeout = 2 * time.Second
	pollEvery    = 20 * time.Millisecond
)

// ParentOptions describe a parent that its owner has started.
type ParentOptions struct {
	Env Environment
	// Facts asks the parent for its facts; it is not called concurrently.
	Facts func(context.Context) (Facts, error)
	// MaxUnanswered is how many checks in a row may stay without an answer before
	// the parent is replaced; 0 is one.
	MaxUnanswered int
}

// Parent is the state of one warm interpreter: whether it is ready, what it has
// imported, and why it has to be replaced. Its three owners start and end it
// differently: an agent one per environment, the shim of a pod its own (both in a
// process of the supervisor), the host of a node (package pods) by itself. Its methods
// may be called concurrently.
type Parent struct {
	o ParentOptions

	mu          sync.Mutex
	ready       bool
	facts       Facts
	fingerprint string // of the installation, when the parent became ready
	unanswered  int    // checks in a row
}

// NewParent returns a parent that is not ready.
func NewParent(o ParentOptions) *Parent {
	o.MaxUnanswered = max(o.MaxUnanswered, 1)
	return &Parent{o: o}
}

// SocketFacts is a ParentOptions.Facts that asks on a unix socket.
func SocketFacts(socket string) func(context.Context) (Facts, error) {
	return func(ctx context.Context) (Facts, error) {
		if _, err := os.Stat(socket); err != nil {
			return Facts{}, err // not listening yet
		}
		ctx, cancel := context.WithTimeout(ctx, factsTimeout)
		defer cancel()
		return AskFacts(ctx, socket)
	}
}

// Await polls a parent until it is ready. If the parent's process ends first it
// returns what exited has delivered. The error is why the parent forks nothing, or the
// cause of ctx's end.
func Await[Exit any](ctx context.Context, p *Parent, exited <-chan Exit) (*Exit, error) {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if f, err := p.o.Facts(ctx); err == nil {
			return nil, p.SetReady(f)
		}
		select {
		case <-poll.C:
		case e := <-exited:
			return &e, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// SetReady takes the first facts of a parent. The error is why it forks nothing.
func (p *Parent) SetReady(f Facts) error {
	if reason := f.Unusable(); reason != "" {
		return errors.New(reason)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready, p.facts = true, f
	p.fingerprint = p.fingerprintLocked()
	return nil
}

// Facts are those of the last answer; ok is false while the parent is not ready.
func (p *Parent) Facts() (f Facts, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts, p.ready
}

// Changed reports whether the installation is another than the one that the parent
// has imported.
func (p *Parent) Changed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready && p.fingerprint != p.fingerprintLocked()
}

func (p *Parent) fingerprintLocked() string {
	return Fingerprint(append(p.o.Env.InstallFiles(), p.facts.Files...))
}

// OnForkFailed makes the next check the last one that may stay without an answer: a fork
// has failed.
func (p *Parent) OnForkFailed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered = max(p.unanswered, p.o.MaxUnanswered-1)
}

// Check asks a ready parent for its facts, and returns why it has to be replaced;
// "" keeps it.
func (p *Parent) Check(ctx context.Context) (replace string) {
	f, err := p.o.Facts(ctx)
	if ctx.Err() != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		if p.unanswered++; p.unanswered >= p.o.MaxUnanswered {
			return "it does not answer: " + err.Error()
		}
		return ""
	case f.Unusable() != "":
		return f.Unusable()
	case f.Forks >= maxForks:
		return fmt.Sprintf("it has forked %d times", f.Forks)
	case p.fingerprint != p.fingerprintLocked():
		return "its files have changed"
	}
	p.facts, p.unanswered = f, 0
	return ""
}
