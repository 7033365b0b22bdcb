package compositions

import (
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

// maxRecords bounds the requests that a Log remembers.
const maxRecords = 1024

// Log has the records of the newest requests. The zero value is empty. Its methods may be
// called concurrently.
type Log struct {
	mu   sync.Mutex
	byID map[string]*logged
	ring []*logged
	next int // the oldest in a full ring
}

type logged struct {
	record   functions.CompositionRecord
	team     string // whose request it is
	clientID string
}

// put stores a record, or replaces that of the same request.
func (l *Log) put(team, clientID string, rec functions.CompositionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.byID[rec.ID]; old != nil {
		old.record = rec
		return
	}
	if l.byID == nil {
		l.byID = map[string]*logged{}
	}
	e := &logged{rec, team, clientID}
	if len(l.ring) < maxRecords {
		l.ring = append(l.ring, e)
	} else {
		delete(l.byID, l.ring[l.next].record.ID)
		l.ring[l.next] = e
		l.next = (l.next + 1) % maxRecords
	}
	l.byID[rec.ID] = e
}

// Find returns the record of a request of the team (of any with ""), by its id or by the
// client's own, of which the newest counts.
func (l *Log) Find(team, id string) (functions.CompositionRecord, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byID[id]; e != nil && (team == "" || e.team == team) {
		return e.record, true
	}
	for i := range l.ring {
		if e := l.ring[(l.next+2*len(l.ring)-1-i)%len(l.ring)]; id != "" && e.clientID == id && (team == "" || e.team == team) {
			return e.record, true
		}
	}
	return functions.CompositionRecord{}, false
}
