package compositions

import (
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// maxRecords bounds the requests that a Log remembers.
const maxRecords = 1024

// Log has the records of the newest requests. The zero value is empty. Its methods may be
// called concurrently.
type Log struct {
	mu   sync.Mutex
	byID map[string]*logged
	ring newest.Ring[*logged]
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
	if old, full := l.ring.Put(e, maxRecords); full {
		delete(l.byID, old.record.ID)
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
	for e := range l.ring.All {
		if id != "" && e.clientID == id && (team == "" || e.team == team) {
			return e.record, true
		}
	}
	return functions.CompositionRecord{}, false
}
