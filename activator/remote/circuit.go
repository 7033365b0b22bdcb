package remote

import (
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
)

// failuresToOpen is how many requests must fail in a row for the circuit to open.
const failuresToOpen = 3

// The pauses before the probes of an open circuit.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

type circuitState uint8

const (
	closed   circuitState = iota // requests pass
	open                         // none passes until the pause is over
	halfOpen                     // one passes, the probe
)

var circuitWords = [...]string{closed: "closed", open: "open", halfOpen: "half_open"}

// outcome is what a request proved of the other side.
type outcome uint8

const (
	unknown       outcome = iota // nothing: its client left, or it was never sent
	good                         // it was answered, if only with an error of the caller's
	failed                       // no connection, no HTTP, an error of the server's, silence
	misconfigured                // the key or the URL is wrong: the next request would fail too
)

// circuit stops requests to a side that fails them. It is pure: the time is an argument.
type circuit struct {
	state    circuitState
	failures int // in a row
	probing  bool
	until    time.Time // of the pause
	reason   string    // of the last failure
	since    time.Time // when it opened
	pause    backoff.Backoff
}

func newCircuit() circuit {
	return circuit{pause: backoff.Backoff{First: firstPause, Max: longestPause}}
}

// turn ends a pause that is over.
func (c *circuit) turn(now time.Time) (changed bool) {
	if c.state != open || now.Before(c.until) {
		return false
	}
	c.state, c.probing = halfOpen, false
	return true
}

// passes reports whether a request would pass, or else after how long another may.
func (c *circuit) passes(now time.Time) (wait time.Duration, ok bool) {
	switch {
	case c.state == open:
		wait = c.until.Sub(now)
		return wait, wait <= 0
	case c.state == halfOpen && c.probing:
		return firstPause, false
	}
	return 0, true
}

// admit lets a request pass, as the probe or not, or returns after how long another may.
func (c *circuit) admit(now time.Time) (probe bool, wait time.Duration, ok bool) {
	if wait, ok = c.passes(now); !ok {
		return false, wait, false
	}
	c.turn(now)
	c.probing = c.state == halfOpen
	return c.probing, 0, true
}

// began notes that the answer to a request has begun as it should. A probe closes the
// circuit then: an answer may take minutes. Its failure later opens it again.
func (c *circuit) began(probe bool) (changed bool) {
	if !probe || c.state != halfOpen {
		return false
	}
	c.state, c.probing, c.failures = closed, false, failuresToOpen-1
	return true
}

// end notes how a request ended. Requests from before the circuit opened open it no
// further, and their success closes it.
func (c *circuit) end(probe bool, o outcome, reason string, now time.Time) (changed bool) {
	was := c.state
	switch o {
	case good:
		c.state, c.probing, c.failures, c.reason = closed, false, 0, ""
		c.pause.Reset()
	case failed, misconfigured:
		if was == open || was == halfOpen && !probe {
			return false
		}
		if c.failures++; o == failed && was == closed && c.failures < failuresToOpen {
			return false
		}
		c.state, c.probing, c.reason, c.since = open, false, reason, now
		c.until = now.Add(c.pause.Next())
	case unknown:
		if probe && was == halfOpen {
			c.probing = false
		}
		return false
	}
	return was != c.state
}
