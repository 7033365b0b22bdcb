package coldstart

import (
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Keep is how many cold starts a Log keeps.
const Keep = 1000

// Log holds the newest cold starts.
type Log struct {
	byID map[string]*Start
	ring []*Start
}

// Add adds a cold start, and forgets the oldest beyond Keep.
func (l *Log) Add(s *Start) {
	if len(l.ring) >= 2*Keep {
		l.ring = append(l.ring[:0], l.ring[len(l.ring)-Keep:]...)
	}
	if len(l.ring) >= Keep {
		delete(l.byID, l.ring[len(l.ring)-Keep].ID)
	}
	l.ring = append(l.ring, s)
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
	for i := len(l.ring) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, l.ring[i].At(now))
	}
	return out
}
