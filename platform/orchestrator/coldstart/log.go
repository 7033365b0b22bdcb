package coldstart

import (
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/placement"
)

const Keep = 1000

type Log struct {
	byID map[string]*Start
	ring newest.Ring[*Start]
}

// Add adds a cold start, and forgets the oldest beyond Keep.
func (l *Log) Add(s *Start) {
	if old, full := l.ring.Put(s, Keep); full {
		delete(l.byID, old.ID)
	}
	if l.byID == nil {
		l.byID = map[string]*Start{}
	}
	l.byID[s.ID] = s
}

// Find returns the cold start with an id, nil if it is not kept.
func (l *Log) Find(id string) *Start { return l.byID[id] }

// Newest returns the timelines of cold starts at now, the newest first, at most limit (0:
// all kept ones).
func (l *Log) Newest(limit int, now placement.Instant) (out []functions.Timeline) {
	if limit <= 0 || limit > Keep {
		limit = Keep
	}
	for s := range l.ring.All {
		if out = append(out, s.At(now)); len(out) == limit {
			break
		}
	}
	return out
}
