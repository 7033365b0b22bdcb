package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/orchestrator/coldstart"
)

// coldStartLog holds the newest cold starts, and the functions with a current one.
type coldStartLog struct {
	*world
	coldstart.Log
	starting orderedset.Set[*functionState]
	inbox    *inbox
}

// begin begins a cold start of f. id is the id that Wake returned, or "".
func (l *coldStartLog) begin(f *functionState, id string, at time.Time) *coldstart.Start {
	if id == "" {
		id = l.inbox.startID(f.Name, func(id string) bool { return l.Find(id) != nil })
	}
	f.coldStart = l.record(f, id, at)
	l.starting.Add(f)
	return f.coldStart
}

// beginExtra begins a cold start of a further replica: it is recorded, but not returned
// by Wake and not in the function's snapshot.
func (l *coldStartLog) beginExtra(f *functionState) *coldstart.Start {
	return l.record(f, l.inbox.newID("cs"), l.timeNow())
}

func (l *coldStartLog) record(f *functionState, id string, at time.Time) *coldstart.Start {
	c := &coldstart.Start{Owner: f, Wanted: l.instant(at), Timeline: functions.Timeline{
		ID: id, Function: f.Name.String(), Began: at, State: functions.Downloading, Progress: functions.NoProgress,
	}}
	l.Add(c)
	return c
}

// finish ends a cold start. The next wake begins another.
func (l *coldStartLog) finish(c *coldstart.Start, st functions.State, cause string) {
	if c == nil || c.Over {
		return
	}
	f := c.Owner.(*functionState)
	c.End = l.now()
	if c.Target != nil && st == functions.Ready {
		c.End = c.Target.(*replicaState).ReadyAt
	}
	c.Finish(st, cause)
	f.RetryOn = ""
	if f.coldStart == c {
		l.starting.Drop(f)
	}
	t := c.Timeline
	if f.model != nil {
		l.counts.RecordStaged(f.model.Spec.Source, t)
	}
	l.inbox.dropStartID(f.Name, c.ID)
	if st == functions.Ready {
		sample := c.Sample()
		f.starts.Add(sample)
		if n := l.nodes[t.Node]; n != nil && n.recordRates(t.Tier, t.Bytes, sample.Phases) {
			l.planner.NodeChanged(n.Node)
		}
	}
}

// Place, Status and IsWaking make a replicaState a coldstart.Replica.
func (r *replicaState) Place() (id, node string) { return r.ID, r.Node }

func (r *replicaState) Status() *functions.ReplicaStatus { return &r.status }

func (r *replicaState) IsWaking() bool { return r.WakingUp }
