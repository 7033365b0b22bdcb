package replica

import (
	"errors"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
)

// commands are those of the owner, merged until Run takes them.
type commands struct {
	unload      bool
	drain       time.Duration
	reason      string
	cancelStart bool
	suspect     string
	sleep       *sleepRequest
	changed     bool // an adapter was loaded or failed
}

// stop returns why the commands end a start whose process was not spawned, and the cause
// with which its staging ends; nil if they do not.
func (c commands) stop() (reason string, cause error) {
	switch {
	case c.unload:
		return c.reason, errors.New("unloaded")
	case c.cancelStart:
		return ErrStartCancelled.Error(), ErrStartCancelled
	}
	return "", nil
}

// commandQueue has the commands that Run has not taken.
type commandQueue struct {
	mu      sync.Mutex
	pending commands
	ready   newest.Signal // set while there are commands
}

func (q *commandQueue) add(f func(*commands)) {
	q.mu.Lock()
	f(&q.pending)
	q.mu.Unlock()
	q.ready.Set()
}

func (q *commandQueue) take() commands {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.pending
	q.pending = commands{}
	return c
}
