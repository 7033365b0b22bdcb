package routes

import (
	"github.com/thaw-dev/thaw/activator/records"
	"github.com/thaw-dev/thaw/activator/router"
	"github.com/thaw-dev/thaw/functions"
)

// maxRecords bounds the decisions that a Log remembers.
const maxRecords = 4096

// Log has the records of the newest decisions. The zero value is empty. Its methods may be
// called concurrently.
type Log struct {
	// Scored, which may be nil and is set before use, is called with each outcome.
	Scored func(rec functions.RouteRecord, team string, score float64)

	log records.Log[functions.RouteRecord]
}

// Logged is the place of one request in a Log.
type Logged = records.Entry[functions.RouteRecord]

// Put stores a record and returns its place. A later decision about the same request replaces
// the record at the place of the earlier one; at is nil for the first.
func (l *Log) Put(at *Logged, team, clientID string, rec *functions.RouteRecord) *Logged {
	return l.log.Put(at, maxRecords, team, rec.ID, clientID, *rec)
}

// Finish notes the status of the answer of a request.
func (l *Log) Finish(at *Logged, code int) {
	if at != nil {
		l.log.Change(at, func(rec *functions.RouteRecord) { rec.Code = code })
	}
}

// Find returns the record of a request of the team (of any with ""), by its id or by the
// client's own.
func (l *Log) Find(team, id string) (functions.RouteRecord, bool) {
	rec, ok := l.log.Find(team, id, nil)
	return Explain(rec), ok
}

// Newest returns at most limit records of the team (of all with ""), the newest first.
func (l *Log) Newest(team string, limit int) []functions.RouteRecord {
	list := l.log.Newest(team, limit)
	for i := range list {
		list[i] = Explain(list[i])
	}
	return list
}

// Explain adds the reason of a decision, before what is said of the prewarm already.
func Explain(rec functions.RouteRecord) functions.RouteRecord {
	rec.Reason = router.Explain(rec) + rec.Reason
	return rec
}

// SetOutcome stores how good the answer to a request was; false where no record of it is
// remembered. team is as in Find.
func (l *Log) SetOutcome(team, id string, score float64) (functions.RouteRecord, bool) {
	var owner string
	rec, ok := l.log.Find(team, id, func(rec *functions.RouteRecord, team string) { rec.Outcome, owner = &score, team })
	if ok && l.Scored != nil {
		l.Scored(rec, owner, score)
	}
	return Explain(rec), ok
}
