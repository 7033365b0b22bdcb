package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

// coldStart is one cold start, from the wake until READY, failed or cancelled.
type coldStart struct {
	functions.Timeline
	Wanted        placement.Instant // the wake
	Decided       placement.Instant // a node was chosen
	Placed        placement.Instant // the agent accepted the load
	End           placement.Instant
	Over          bool
	FromDeepSleep bool          // a wake-up from a sleep without weights
	Target        *replicaState // nil until a node is chosen
	Owner         *functionState
	percent       int // published progress; never falls
}

// Finish ends the cold start at s.End.
func (s *coldStart) Finish(st functions.State, cause string) {
	t := s.At(s.End)
	s.Over = true
	t.State, t.Error = st, cause
	t.Progress = functions.Progress{State: st, Percent: t.Progress.Percent, Bytes: t.Progress.Bytes, Total: t.Progress.Total, ETA: -1}
	if st == functions.Ready {
		t.Progress.Percent, t.Progress.ETA = 100, 0
	}
	s.Timeline = t
}

// Sample returns the times of a cold start that reached READY.
func (s *coldStart) Sample() forecast.StartSample {
	phases := map[functions.Phase]time.Duration{}
	for _, p := range s.Phases {
		phases[p.Phase] += boundedSeconds(p.Duration)
	}
	return forecast.StartSample{Node: s.Node, Tier: s.Tier, Total: s.End - s.Wanted, Start: s.End - s.Decided, FromDeepSleep: s.FromDeepSleep,
		Phases: phases}
}

// boundedSeconds converts seconds that an agent reported, bounded against overflow.
func boundedSeconds(f float64) time.Duration {
	return time.Duration(max(0, min(f, 1e7)) * float64(time.Second))
}

// At returns the timeline at now.
func (s *coldStart) At(now placement.Instant) functions.Timeline {
	t := s.Timeline
	if s.Over {
		return t
	}
	if s.End > 0 {
		now = s.End
	}
	span := func(p functions.Phase, from, to placement.Instant) {
		t.Phases = append(t.Phases, functions.Span{Phase: p, Start: (from - s.Wanted).Seconds(), Duration: max(0, to-from).Seconds()})
	}
	t.Phases = nil
	t.Total = (now - s.Wanted).Seconds()
	if s.Decided == 0 {
		span(functions.PhaseQueue, s.Wanted, now)
		t.Progress = functions.Progress{State: functions.Downloading, Percent: -1, ETA: s.eta(now)}
		return t
	}
	span(functions.PhaseQueue, s.Wanted, s.Decided)
	if s.Placed == 0 {
		span(functions.PhasePlace, s.Decided, now)
	} else {
		span(functions.PhasePlace, s.Decided, s.Placed)
	}
	if r := s.Target; r != nil {
		st := &r.status
		t.Replica, t.Node = r.ID, r.Node
		t.Start, t.StartNote = st.Start, st.StartNote
		t.Bytes = max(t.Bytes, st.TotalBytes)
		if st.State != "" {
			t.State = st.State
		}
		// The agent's spans count from its receipt of the load.
		from := s.Decided
		for _, p := range st.Phases {
			if r.WakingUp && st.State == functions.Sleeping {
				break // they are spans of its previous start
			}
			p.Start += (from - s.Wanted).Seconds()
			if last := &t.Phases[len(t.Phases)-1]; p.Phase == functions.PhasePlace && last.Phase == p.Phase {
				// Both report the phase: the agent continues a phase that this loop began,
				// such as the scheduling of a pod.
				last.Duration = max(last.Duration, p.Start+p.Duration-last.Start)
				continue
			}
			p.Parts = slices.Clone(p.Parts) // the replica's slice must not change
			for i := range p.Parts {
				p.Parts[i].Start += (from - s.Wanted).Seconds()
			}
			t.Phases = append(t.Phases, p)
		}
		t.Progress = functions.Progress{State: t.State, Percent: st.Percent, Bytes: st.Bytes, Total: st.TotalBytes}
	}
	t.Progress.ETA = s.eta(now)
	if eta := t.Progress.ETA; eta >= 0 {
		whole := now - s.Wanted + eta
		if whole > 0 {
			t.Progress.Percent = int(100 * (now - s.Wanted) / whole)
		}
	}
	// Progress never decreases, and is 100 only at the end.
	if t.Progress.Percent >= 0 {
		s.percent = max(s.percent, min(t.Progress.Percent, 99))
		t.Progress.Percent = s.percent
	}
	return t
}

// eta estimates the rest of a cold start: the remaining bytes over the measured rate (or
// the history before one is measured), then the usual load and warm-up; the engine
// boots during staging. -1 if unknown.
func (s *coldStart) eta(now placement.Instant) time.Duration {
	f := s.Owner
	if s.Tier == functions.TierSleeping {
		if usual := f.starts.WakeTime(s.FromDeepSleep, 50); usual >= 0 {
			return max(0, usual-(now-s.Wanted))
		}
		return -1
	}
	engine, node := functions.Engine(""), s.Node
	if m := f.model; m != nil {
		engine = m.Spec.Engine
	}
	if s.Target != nil {
		node = s.Target.Node
	}
	need := func(p functions.Phase) time.Duration { return f.starts.PhaseTime(p, node, engine) }
	spawn, load, warm := need(functions.PhaseSpawn), need(functions.PhaseLoad), need(functions.PhaseWarmup)
	if load < 0 {
		return -1
	}
	spawn, warm = max(spawn, 0), max(warm, 0)
	spent := map[functions.Phase]time.Duration{}
	var under functions.Phase // the current phase; those before it are over
	var st functions.ReplicaStatus
	reported := s.Decided // how far the phases reach: a phase is reported when it ends
	if s.Target != nil {
		st = s.Target.status
		for _, p := range st.Phases {
			spent[p.Phase] = boundedSeconds(p.Duration)
			under = p.Phase
			reported = max(reported, s.Decided+boundedSeconds(p.Start)+boundedSeconds(p.Duration))
		}
	}
	left := func(p functions.Phase, need time.Duration) time.Duration {
		if p == under { // an overdue phase is assumed to take a tenth of its time more
			return max(need-spent[p], spent[p]/10)
		}
		if slices.Index(functions.Phases, p) < slices.Index(functions.Phases, under) {
			return 0
		}
		return max(0, need-spent[p])
	}
	var stage time.Duration
	if st.State != functions.Loading {
		switch took := spent[functions.PhaseStage]; {
		case st.TotalBytes > 0 && st.Bytes >= st.TotalBytes:
		case st.TotalBytes > 0 && st.Bytes > 0 && took > 50*time.Millisecond:
			stage = time.Duration(float64(took) * float64(st.TotalBytes-st.Bytes) / float64(st.Bytes))
		default:
			known := need(functions.PhaseStage)
			if known < 0 {
				if f.Source != "" && f.Machine == "" {
					return -1 // it must be staged, and no staging was measured
				}
				known = 0
			}
			stage = left(functions.PhaseStage, known)
		}
	}
	place := left(functions.PhasePlace, max(need(functions.PhasePlace), 0))
	whole := place + max(stage, left(functions.PhaseSpawn, spawn)) + left(functions.PhaseLoad, load) + left(functions.PhaseWarmup, warm)
	if since := now - reported; s.Decided > 0 && since > 0 {
		return max(whole-since, since/10)
	}
	return whole
}
