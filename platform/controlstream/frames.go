package controlstream

import (
	"errors"
	"slices"
	"time"

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
// Clocks of two machines are never compared: a frame has its moments as if it was made at
// frameTime, and the receiver moves them to its own clock.

type reportFrame struct {
	Report     Report
	FullSync   bool   // functions that are not in Report.Demand have no requests
	AppliedSeq uint64 // Seq of the last updateFrame applied before Report.Demand was read
}

type updateFrame struct {
	Update    Update // without Peers, which is a field of its own
	SameModel []bool // of each of Update.Functions: its model has not changed on this connection and is left out
	Peers     []functions.Peer
	HasPeers  bool   // Peers is set, maybe to none
	Seq       uint64 // of the newest snapshot change in this or an earlier frame
	Ping      bool   // the frame says nothing
	More      bool   // the next frame continues the update
}

// frameTime is when a frame was made, in the frame itself.
var frameTime = time.Unix(1<<31, 0).UTC()

// moveTimes changes the moments that are not zero, from as long after (or before) from to as long
// after to.
func moveTimes(from, to time.Time, moments ...*time.Time) {
	for _, t := range moments {
		if !t.IsZero() {
			*t = to.Add(t.Sub(from))
		}
	}
}

// moveDemand returns r with the moments of its demand moved; none of them is after to.
func (r Report) moveDemand(from, to time.Time) Report {
	r.Demand = slices.Clone(r.Demand)
	for i := range r.Demand {
		d := &r.Demand[i]
		for _, t := range []*time.Time{&d.Oldest, &d.LastEnd, &d.Low.LastUse} {
			if moveTimes(from, to, t); t.After(to) {
				*t = to
			}
		}
	}
	return r
}

func (r Report) pack(whole bool, heard uint64, now time.Time) *reportFrame {
	return &reportFrame{Report: r.moveDemand(now, frameTime), FullSync: whole, AppliedSeq: heard}
}

var errDemand = errors.New("a demand is less than nothing")

func (f *reportFrame) unpack(now time.Time) (Report, error) {
	for _, d := range f.Report.Demand {
		least := min(d.Active, d.Queued, d.Low.Active, d.Low.Queued)
		for _, n := range d.InFlight {
			least = min(least, n)
		}
		if least < 0 {
			return Report{}, errDemand
		}
	}
	return f.Report.moveDemand(frameTime, now), nil
}

// models holds the last model of each function sent over one direction of a connection. The
// reader or the writer of that direction owns it.
type models map[functions.Name]*functions.Model

// forget drops the models of functions that are not there after u.
func (m models) forget(u *Update) {
	if u.FullSync {
		clear(m)
	}
	for _, name := range u.Removed {
		delete(m, name)
	}
}

// moveSnapshot returns s with its moments moved.
func moveSnapshot(s snapshot.Snapshot, from, to time.Time) snapshot.Snapshot {
	if s.Failure != nil {
		s.Failure = new(*s.Failure)
		moveTimes(from, to, &s.Failure.Until, &s.Failure.At)
	}
	if s.Blocked != nil {
		s.Blocked = new(*s.Blocked)
		moveTimes(from, to, &s.Blocked.At)
	}
	if s.ColdStart != nil {
		s.ColdStart = new(*s.ColdStart)
		moveTimes(from, to, &s.ColdStart.Began)
	}
	return s
}

func (u Update) pack(seq uint64, known models, now time.Time) *updateFrame {
	f := &updateFrame{Update: u, Seq: seq}
	if f.Update.Peers = nil; u.Peers != nil {
		f.HasPeers, f.Peers = true, *u.Peers
	}
	known.forget(&u)
	f.Update.Functions = make([]snapshot.Snapshot, len(u.Functions))
	f.SameModel = make([]bool, len(u.Functions))
	for i, p := range u.Functions {
		m, ok := known[p.Name]
		known[p.Name] = p.Model
		if f.SameModel[i] = ok && m == p.Model; f.SameModel[i] {
			p.Model = nil
		}
		f.Update.Functions[i] = moveSnapshot(p, now, frameTime)
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
	known.forget(&d)
	for i, p := range f.Update.Functions {
		if i < len(f.SameModel) && f.SameModel[i] {
			p.Model = known[p.Name]
		}
		known[p.Name] = p.Model
		d.Functions = append(d.Functions, moveSnapshot(p, frameTime, now))
	}
	return d
}
