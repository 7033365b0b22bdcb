package controlstream

import (
	"errors"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// Each direction of a control stream is one gob stream of frames: reportFrame from a peer,
// updateFrame from the controller. gob describes a type once, so a snapshot takes a few
// hundred bytes.
//
// The two ends may have different versions during an upgrade: unknown fields are skipped.
// A field whose type changes needs a new protocol version.
//
// Clocks of two machines are never compared: a moment is sent as a duration before the
// frame was made, and converted to the receiver's clock.

type reportFrame struct {
	Report     Report // without Demand, which is a field of its own
	Demand     []demandFrame
	FullSync   bool   // functions that are not in Demand have no requests
	AppliedSeq uint64 // Seq of the last updateFrame applied before Demand was read
}

type demandFrame struct {
	Name            functions.Name
	Active, Queued  int
	Oldest, LastEnd time.Duration // ago; negative: none

	LowActive, LowQueued int           // of Active and Queued: of priority low
	LastUse              time.Duration // ago, of admission.LowLoad
	InFlight             map[string]int
}

type updateFrame struct {
	Update    Update // without Functions and Peers, which are fields of their own
	Functions []functionFrame
	Peers     []functions.Peer
	HasPeers  bool   // Peers is set, maybe to none
	Seq       uint64 // of the newest snapshot change in this or an earlier frame
	Ping      bool   // the frame says nothing
	More      bool   // the next frame continues the update
}

// functionFrame is the wire form of a snapshot. A model that has not changed on this
// connection is left out.
type functionFrame struct {
	Snapshot  snapshot.Snapshot
	SameModel bool
	// Durations until these moments.
	Until, Failed, Blocked, Began time.Duration
}

// never is the wire form of the zero time.
const never = time.Duration(-1)

func elapsedSince(t, now time.Time) time.Duration {
	if t.IsZero() {
		return never
	}
	return max(0, now.Sub(t))
}

func momentBefore(d time.Duration, now time.Time) time.Time {
	if d < 0 {
		return time.Time{}
	}
	return now.Add(-d)
}

func (r Report) pack(whole bool, heard uint64, now time.Time) *reportFrame {
	f := &reportFrame{Report: r, FullSync: whole, AppliedSeq: heard}
	f.Report.Demand = nil
	for _, d := range r.Demand {
		f.Demand = append(f.Demand, demandFrame{
			Name: d.Name, Active: d.Active, Queued: d.Queued, Oldest: elapsedSince(d.Oldest, now), LastEnd: elapsedSince(d.LastEnd, now),
			InFlight:  d.InFlight,
			LowActive: d.Low.Active, LowQueued: d.Low.Queued, LastUse: elapsedSince(d.Low.LastUse, now),
		})
	}
	return f
}

var errDemand = errors.New("a demand is less than nothing")

func (f *reportFrame) unpack(now time.Time) (Report, error) {
	u := f.Report
	u.Demand = nil
	for _, d := range f.Demand {
		if d.Active < 0 || d.Queued < 0 || d.LowActive < 0 || d.LowQueued < 0 {
			return Report{}, errDemand
		}
		for _, n := range d.InFlight {
			if n < 0 {
				return Report{}, errDemand
			}
		}
		u.Demand = append(u.Demand, activator.Demand{
			Name: d.Name, Active: d.Active, Queued: d.Queued, Oldest: momentBefore(d.Oldest, now), LastEnd: momentBefore(d.LastEnd, now),
			Low:      admission.LowLoad{Active: d.LowActive, Queued: d.LowQueued, LastUse: momentBefore(d.LastUse, now)},
			InFlight: d.InFlight,
		})
	}
	return u, nil
}

// models holds the last model of each function sent over one direction of a connection. The
// reader or the writer of that direction owns it.
type models map[functions.Name]*functions.Model

func (u Update) pack(seq uint64, known models, now time.Time) *updateFrame {
	f := &updateFrame{Update: u, Seq: seq}
	f.Update.Functions, f.Update.Peers = nil, nil
	if u.Peers != nil {
		f.HasPeers, f.Peers = true, *u.Peers
	}
	if u.FullSync {
		clear(known)
	}
	for _, name := range u.Removed {
		delete(known, name)
	}
	for _, p := range u.Functions {
		w := functionFrame{Snapshot: p}
		if m, ok := known[p.Name]; ok && m == p.Model {
			w.SameModel, w.Snapshot.Model = true, nil
		} else {
			known[p.Name] = p.Model
		}
		if p.Failure != nil {
			w.Until, w.Failed = p.Failure.Until.Sub(now), p.Failure.At.Sub(now)
		}
		if p.Blocked != nil {
			w.Blocked = p.Blocked.At.Sub(now)
		}
		if p.ColdStart != nil {
			w.Began = p.ColdStart.Began.Sub(now)
		}
		f.Functions = append(f.Functions, w)
	}
	return f
}

func (f *updateFrame) unpack(known models, now time.Time) Update {
	d := f.Update
	d.Functions, d.Peers = nil, nil
	if f.HasPeers {
		peers := append([]functions.Peer{}, f.Peers...)
		d.Peers = &peers
	}
	if d.FullSync {
		clear(known)
	}
	for _, name := range d.Removed {
		delete(known, name)
	}
	move := func(t *time.Time, d time.Duration) {
		if !t.IsZero() {
			*t = now.Add(d)
		}
	}
	for i := range f.Functions {
		w := &f.Functions[i]
		p := w.Snapshot
		if w.SameModel {
			p.Model = known[p.Name]
		} else {
			known[p.Name] = p.Model
		}
		if p.Failure != nil {
			move(&p.Failure.Until, w.Until)
			move(&p.Failure.At, w.Failed)
		}
		if p.Blocked != nil {
			move(&p.Blocked.At, w.Blocked)
		}
		if p.ColdStart != nil {
			move(&p.ColdStart.Began, w.Began)
		}
		d.Functions = append(d.Functions, p)
	}
	return d
}
