package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/placement"
)

const keptColdStarts = 1000

// coldStartLog holds the newest cold starts, and the functions with a current one.
type coldStartLog struct {
	*world
	byID     map[string]*coldStart
	ring     newest.Ring[*coldStart]
	starting orderedset.Set[*functionState]
	inbox    *inbox
}

// begin begins a cold start of f. id is the id that Wake returned, or "".
func (l *coldStartLog) begin(f *functionState, id string, at time.Time) *coldStart {
	if id == "" {
		id = l.inbox.startID(f.Name, func(id string) bool { return l.find(id) != nil })
	}
	f.coldStart = l.record(f, id, at)
	l.starting.Add(f)
	return f.coldStart
}

// beginExtra begins a cold start of a further replica: it is recorded, but not returned
// by Wake and not in the function's snapshot.
func (l *coldStartLog) beginExtra(f *functionState) *coldStart {
	return l.record(f, l.inbox.newID("cs"), l.timeNow())
}

func (l *coldStartLog) record(f *functionState, id string, at time.Time) *coldStart {
	c := &coldStart{Owner: f, Wanted: l.instant(at), Timeline: functions.Timeline{
		ID: id, Function: f.Name.String(), Began: at, State: functions.Downloading, Progress: functions.NoProgress,
	}}
	l.add(c)
	return c
}

// finish ends a cold start. The next wake begins another.
func (l *coldStartLog) finish(c *coldStart, st functions.State, cause string) {
	if c == nil || c.Over {
		return
	}
	f := c.Owner
	c.End = l.now()
	if c.Target != nil && st == functions.Ready {
		c.End = c.Target.ReadyAt
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

// add adds a cold start, and forgets the oldest beyond keptColdStarts.
func (l *coldStartLog) add(s *coldStart) {
	if old, full := l.ring.Put(s, keptColdStarts); full {
		delete(l.byID, old.ID)
	}
	if l.byID == nil {
		l.byID = map[string]*coldStart{}
	}
	l.byID[s.ID] = s
}

// find returns the cold start with an id, nil if it is not kept.
func (l *coldStartLog) find(id string) *coldStart { return l.byID[id] }

// newest returns the timelines of cold starts at now, the newest first, at most limit (0:
// all kept ones).
func (l *coldStartLog) newest(limit int, now placement.Instant) (out []functions.Timeline) {
	if limit <= 0 || limit > keptColdStarts {
		limit = keptColdStarts
	}
	for s := range l.ring.All {
		if out = append(out, s.At(now)); len(out) == limit {
			break
		}
	}
	return out
}
