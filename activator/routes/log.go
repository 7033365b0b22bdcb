package routes

import (
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// maxRecords bounds the decisions that a Log remembers.
const maxRecords = 4096

// Log has the records of the newest decisions. The zero value is empty. Its methods may be
// called concurrently.
type Log struct {
	// Scored, which may be nil and is set before use, is called with each outcome.
	Scored func(rec functions.RouteRecord, team string, score float64)

	mu   sync.Mutex
	ring newest.Ring[*Logged]
}

// Logged is the place of one request in a Log.
type Logged struct {
	record   *functions.RouteRecord
	team     string // whose request it was
	clientID string
}

// Put stores a record, which its caller does not change any more, and returns its place. A
// later decision about the same request replaces the record at the place of the earlier one;
// at is nil for the first.
func (l *Log) Put(at *Logged, team, clientID string, rec *functions.RouteRecord) *Logged {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at != nil {
		at.record = rec
		return at
	}
	at = &Logged{rec, team, clientID}
	l.ring.Put(at, maxRecords)
	return at
}

// Finish notes the status of the answer of a request.
func (l *Log) Finish(at *Logged, code int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at != nil {
		at.record.Code = code
	}
}

// find returns the record of a request of the team, with team "" of any: by its id, or else
// the newest by the client's own, since those of one team cannot hide another's. An index
// would cost each request more than this search costs the few who ask. mu is held.
func (l *Log) find(team, id string) (byClient *Logged) {
	if id == "" {
		return nil
	}
	for e := range l.ring.All {
		if team != "" && e.team != team {
			continue
		}
		if e.record.ID == id {
			return e
		}
		if byClient == nil && e.clientID == id {
			byClient = e
		}
	}
	return byClient
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
	for e := range l.ring.All {
		if len(out) == limit {
			break
		}
		if team == "" || e.team == team {
			out = append(out, *e.record)
		}
	}
	return out
}
