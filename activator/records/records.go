// Package records keeps the newest records (of a type that the caller gives) in memory, one for
// each request, and finds them by the request's id or the client's own, within a team.
package records

import (
	"iter"
	"sync"

	"github.com/thaw-dev/thaw/functions/newest"
)

// Log has the records of the newest requests. The zero value is empty. Its methods may be
// called concurrently.
type Log[R any] struct {
	mu   sync.Mutex
	ring newest.Ring[*Entry[R]]
}

// Entry is the place of one request in a Log.
type Entry[R any] struct {
	id, clientID string
	team         string // whose request it is

	// Record may be read by the request's own goroutine, which puts it; all else goes by the Log.
	Record R
}

// Put stores the record of a request and returns its entry. at is that of an earlier record
// of the request, which is replaced; nil: there is none. At most maximum records are kept.
func (l *Log[R]) Put(at *Entry[R], maximum int, team, id, clientID string, record R) *Entry[R] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at != nil {
		at.Record = record
		return at
	}
	at = &Entry[R]{id, clientID, team, record}
	l.ring.Put(at, maximum)
	return at
}

// newest yields the entries of a team (of all with ""), the newest first. mu is held.
func (l *Log[R]) newest(team string) iter.Seq[*Entry[R]] {
	return func(yield func(*Entry[R]) bool) {
		for e := range l.ring.All {
			if (team == "" || e.team == team) && !yield(e) {
				return
			}
		}
	}
}

// Find returns the record of a request of the team (of any with ""): by its id, or else the
// newest by the client's own, since those of one team cannot hide another's. change, which may
// be nil, changes it before, and gets the team whose request it is. An index would cost each
// request more than this search costs the few who ask.
func (l *Log[R]) Find(team, id string, change func(record *R, team string)) (record R, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found *Entry[R]
	for e := range l.newest(team) {
		if e.id == id {
			found = e
			break
		}
		if found == nil && e.clientID == id {
			found = e
		}
	}
	if id == "" || found == nil {
		return record, false
	}
	if change != nil {
		change(&found.Record, found.team)
	}
	return found.Record, true
}

// Newest returns at most limit records of the team (of all with ""), the newest first.
func (l *Log[R]) Newest(team string, limit int) []R {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []R{}
	for e := range l.newest(team) {
		if len(out) == limit {
			break
		}
		out = append(out, e.Record)
	}
	return out
}

func (l *Log[R]) Change(at *Entry[R], change func(record *R)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&at.Record)
}
