package routes

import (
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// maxRecords bounds the decisions that a Log remembers.
const maxRecords = 4096

// Log has the records of the newest decisions. The zero value is empty. Its methods may be
// called concurrently.
type Log struct {
	// Scored, which may be nil and is set before use, is called with each outcome.
	Scored func(rec functions.RouteRecord, team string, score float64)

	mu       sync.Mutex
	byID     map[string]*logged
	byClient map[clientKey]*logged // of two requests with one id the newer
	ring     []*logged
	next     int // the oldest in a full ring
}

// clientKey is a client's own id of a request: those of one team cannot hide another's.
type clientKey struct{ team, id string }

type logged struct {
	record   *functions.RouteRecord
	team     string // whose request it was
	clientID string
}

// Put stores a record, which its caller does not change any more. A later decision about
// the same request replaces it.
func (l *Log) Put(team, clientID string, rec *functions.RouteRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.byID[rec.ID]; old != nil {
		old.record = rec
		return
	}
	if l.byID == nil {
		l.byID, l.byClient = map[string]*logged{}, map[clientKey]*logged{}
	}
	e := &logged{rec, team, clientID}
	if len(l.ring) < maxRecords {
		l.ring = append(l.ring, e)
	} else {
		old := l.ring[l.next]
		delete(l.byID, old.record.ID)
		if k := (clientKey{old.team, old.clientID}); l.byClient[k] == old {
			delete(l.byClient, k)
		}
		l.ring[l.next] = e
		l.next = (l.next + 1) % maxRecords
	}
	l.byID[rec.ID] = e
	if clientID != "" {
		l.byClient[clientKey{team, clientID}] = e
	}
}

// Finish notes the status of the answer of a request.
func (l *Log) Finish(id string, code int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byID[id]; e != nil {
		e.record.Code = code
	}
}

// find returns the record of a request of the team; with team "" of any. mu is held.
func (l *Log) find(team, id string) *logged {
	if e := l.byID[id]; e != nil && (team == "" || e.team == team) {
		return e
	}
	if team != "" {
		return l.byClient[clientKey{team, id}]
	}
	for i := range l.ring { // the newest first
		if e := l.ring[(l.next+2*len(l.ring)-1-i)%len(l.ring)]; e.clientID == id && id != "" {
			return e
		}
	}
	return nil
}

// Find returns the record of a request of the team (of any with ""), by its id or by the
// client's own.
func (l *Log) Find(team, id string) (functions.RouteRecord, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.find(team, id)
	if e == nil {
		return functions.RouteRecord{}, false
	}
	return *e.record, true
}

// SetOutcome stores how good the answer to a request was; false where no record of it is
// remembered. team is as in Find.
func (l *Log) SetOutcome(team, id string, score float64) (functions.RouteRecord, bool) {
	rec, owner, ok := l.setOutcome(team, id, score)
	if ok && l.Scored != nil {
		l.Scored(rec, owner, score)
	}
	return rec, ok
}

func (l *Log) setOutcome(team, id string, score float64) (rec functions.RouteRecord, owner string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.find(team, id)
	if e == nil {
		return functions.RouteRecord{}, "", false
	}
	e.record.Outcome = &score
	return *e.record, e.team, true
}

// Newest returns at most limit records of the team (of all with ""), the newest first.
func (l *Log) Newest(team string, limit int) []functions.RouteRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []functions.RouteRecord{}
	for i := range l.ring {
		e := l.ring[(l.next+2*len(l.ring)-1-i)%len(l.ring)]
		if len(out) == limit {
			break
		}
		if team == "" || e.team == team {
			out = append(out, *e.record)
		}
	}
	return out
}
