package setbacks

import (
	"strings"
	"time"
)

// Backoff is the pause before the next start after n consecutive failures: 1 s,
// doubled each time, at most a minute. Backoff(0) is 0.
func Backoff(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	return min(time.Second<<min(n-1, 6), time.Minute)
}

// Pauses after starts that failed by one cause. The first pause is as long as the
// engine's start, without the staging of its weights, so that a client that tries again by itself, whose pauses grow to a minute, does not
// start the engine each time; later ones let a failing model use a thirtieth of the time.
const (
	repeatedPause    = 30 // of what the last start took
	maxRepeatedPause = 5 * time.Minute
)

// StartFailures counts the starts of a function that failed one after another. The zero
// value has none.
type StartFailures struct {
	count, same int    // starts, and those of them by the last cause
	cause       string // without its digits, which differ between two errors of one cause
	evicted     bool   // AfterEviction was called
}

// AfterEviction reports whether a start that failed for want of memory is repeated at once,
// after idle replicas were evicted: the first time only.
func (s *StartFailures) AfterEviction() bool {
	first := !s.evicted
	s.evicted = true
	return first
}

// Add counts a start that failed by cause after its engine took that long, and returns the pause
// before the next one: at least that long, and longer where the cause is that of the
// start before.
func (s *StartFailures) Add(cause string, took time.Duration) time.Duration {
	cause = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, cause)
	if cause != s.cause {
		s.cause, s.same = cause, 0
	}
	s.count++
	s.same++
	pause := max(Backoff(s.count), took)
	if s.same > 1 {
		pause = max(pause, min(repeatedPause*took, maxRepeatedPause))
	}
	return pause
}
