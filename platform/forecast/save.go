package forecast

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// MaxFile is the largest file that ReadFile reads.
const MaxFile = 64 << 20

const fileVersion = 1

// Snapshot is a copy of a history, in the form of its file.
type Snapshot struct {
	Version   int              `json:"version"`
	Saved     time.Time        `json:"saved"`
	Functions []functionRecord `json:"functions"`
}

type functionRecord struct {
	Name   string           `json:"name"`
	Begin  time.Time        `json:"begin"`
	End    time.Time        `json:"end"`
	Uses   float64          `json:"uses"`
	Idle   []uint16         `json:"idle,omitempty"` // bin, count, bin, count, …
	Day    int32            `json:"day,omitempty"`
	Seen   uint16           `json:"seen,omitempty"`
	Days   string           `json:"days,omitempty"` // base64
	Today  [2]uint64        `json:"today"`
	Starts uint16           `json:"starts,omitempty"`
	After  []followerRecord `json:"after,omitempty"`
}

type followerRecord struct {
	Name string        `json:"name"`
	N    uint16        `json:"n"`
	Lag  time.Duration `json:"lag"` // in nanoseconds
}

// Snapshot copies the history. In the copy, a current use ends now.
func (h *History) Snapshot(now time.Time) Snapshot {
	f := Snapshot{Version: fileVersion, Saved: now.Round(0), Functions: make([]functionRecord, 0, len(h.functions))}
	for name, p := range h.functions {
		r := functionRecord{Name: name.String(), Begin: p.begin.Round(0), End: p.end.Round(0), Uses: p.usesAt(now), Day: p.daily.day,
			Seen: p.daily.seen, Today: p.daily.today, Starts: p.starts}
		if p.using {
			r.End = f.Saved
			if r.End.Before(r.Begin) {
				r.End = r.Begin
			}
		}
		for _, b := range p.idle.bins {
			r.Idle = append(r.Idle, b.at, b.n)
		}
		if p.daily.share != [quartersPerDay]uint8{} {
			r.Days = base64.StdEncoding.EncodeToString(p.daily.share[:])
		}
		for i := range p.followedBy {
			if a := &p.followedBy[i]; a.who != nil && a.n > 0 {
				r.After = append(r.After, followerRecord{a.who.name.String(), a.n, a.lag})
			}
		}
		f.Functions = append(f.Functions, r)
	}
	slices.SortFunc(f.Functions, func(a, b functionRecord) int { return strings.Compare(a.Name, b.Name) })
	return f
}

// load replaces the history by a saved one. On an error h is unchanged. An idle time
// that began before the save is learned only if now is within five minutes of the
// save, so that no use can have been missed.
func (h *History) load(f Snapshot, now time.Time) error {
	if f.Version != fileVersion {
		return fmt.Errorf("history: version %d, want %d", f.Version, fileVersion)
	}
	if len(f.Functions) > h.max {
		return fmt.Errorf("history: %d functions, at most %d", len(f.Functions), h.max)
	}
	torn := now.Sub(f.Saved) > maxSaveGap || now.Before(f.Saved)
	all := make(map[functions.Name]*functionUsage, len(f.Functions))
	for i := range f.Functions {
		p, err := f.Functions[i].past(f.Saved)
		if err != nil {
			return fmt.Errorf("history: function %d: %w", i, err)
		}
		if all[p.name] != nil {
			return fmt.Errorf("history: %s is there twice", p.name)
		}
		p.gapUnknown = torn
		all[p.name] = p
	}
	for i := range f.Functions {
		if err := f.Functions[i].link(all); err != nil {
			return fmt.Errorf("history: function %d: %w", i, err)
		}
	}
	h.functions = all
	h.recent = [maxRecent]*functionUsage{}
	h.due, h.fresh = nil, nil
	for i := range f.Functions { // in file order, so that the same file gives the same predictions
		name, _ := functions.ParseName(f.Functions[i].Name, "")
		h.queueForPlan(all[name])
	}
	return nil
}

func (r *functionRecord) past(saved time.Time) (*functionUsage, error) {
	name, err := functions.ParseName(r.Name, "")
	if err != nil || name.Team == "" || name.String() != r.Name {
		return nil, fmt.Errorf("%.80q is no name of a function", r.Name)
	}
	p := &functionUsage{name: name, begin: r.Begin, end: r.End, uses: r.Uses, usedAt: saved, starts: r.Starts}
	switch {
	case r.Begin.IsZero() || r.End.Before(r.Begin):
		return nil, errors.New("its last use ends before it begins")
	case math.IsNaN(r.Uses) || r.Uses < 0 || r.Uses > 1e12:
		return nil, errors.New("uses is out of bounds")
	case r.Starts >= manyStarts:
		return nil, errors.New("starts is out of bounds")
	case len(r.Idle)%2 != 0 || len(r.Idle) > 2*maxBins:
		return nil, errors.New("idle has not the form bin, count, …")
	}
	for i := 0; i < len(r.Idle); i += 2 {
		b := bin{r.Idle[i], r.Idle[i+1]}
		if b.at > topBin || b.n == 0 || b.n > maxCount || i > 0 && b.at <= r.Idle[i-2] {
			return nil, errors.New("idle is out of bounds or order")
		}
		p.idle.bins = append(p.idle.bins, b)
		p.idle.total += uint32(b.n)
	}
	if r.Day < 0 || r.Seen > 1<<15 || r.Today[1]>>(quartersPerDay-64) != 0 {
		return nil, errors.New("days are out of bounds")
	}
	p.daily.day, p.daily.seen, p.daily.today = r.Day, r.Seen, r.Today
	if r.Days != "" {
		b, err := base64.StdEncoding.DecodeString(r.Days)
		if err != nil || len(b) != quartersPerDay {
			return nil, errors.New("days are not 96 bytes in base64")
		}
		copy(p.daily.share[:], b)
	}
	if len(r.After) > maxFollowers {
		return nil, fmt.Errorf("after has more than %d", maxFollowers)
	}
	return p, nil
}

// link resolves the followers of a function by name; unknown ones are dropped.
func (r *functionRecord) link(all map[functions.Name]*functionUsage) error {
	name, _ := functions.ParseName(r.Name, "")
	p, k := all[name], 0
	for _, a := range r.After {
		if a.N == 0 || a.N >= manyStarts || a.Lag < 0 || a.Lag > followWithin {
			return errors.New("after is out of bounds")
		}
		by, err := functions.ParseName(a.Name, "")
		if err != nil || by.String() != a.Name {
			return fmt.Errorf("%.80q is no name of a function", a.Name)
		}
		who := all[by]
		if who == nil || who == p || by.Team != name.Team ||
			slices.ContainsFunc(p.followedBy[:k], func(f follower) bool { return f.who == who }) {
			continue
		}
		p.followedBy[k] = follower{who: who, n: a.N, lag: a.Lag}
		k++
	}
	return nil
}
