package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

const keepColdStarts = 1000

// coldStart is one cold start, from the wake until READY, failed or cancelled.
type coldStart struct {
	functions.Timeline
	began         placement.Instant
	decided       placement.Instant // a node was chosen
	placed        placement.Instant // the agent accepted the load
	end           placement.Instant
	over          bool
	fromDeepSleep bool // a wake-up from a sleep without weights
	replica       *replicaState
	function      *functionState
	percent       int // published progress; never falls
}

// coldStartLog holds the newest cold starts, and the functions with a current one.
type coldStartLog struct {
	byID     map[string]*coldStart
	ring     []*coldStart
	starting orderedset.Set[*functionState]

	inbox *inbox
	clock *clock
}

func (l *coldStartLog) add(c *coldStart) {
	if len(l.ring) >= 2*keepColdStarts {
		l.ring = append(l.ring[:0], l.ring[len(l.ring)-keepColdStarts:]...)
	}
	if len(l.ring) >= keepColdStarts {
		delete(l.byID, l.ring[len(l.ring)-keepColdStarts].ID)
	}
	l.ring = append(l.ring, c)
	l.byID[c.ID] = c
}

// begin begins a cold start of f. id is the id that Wake returned, or "".
func (l *coldStartLog) begin(f *functionState, id string, at time.Time) *coldStart {
	if id == "" {
		id = l.inbox.startID(f.Name, func(id string) bool { return l.byID[id] != nil })
	}
	f.coldStart = l.record(f, id, at)
	l.starting.Add(f)
	return f.coldStart
}

// beginExtra begins a cold start of a further replica: it is recorded, but not returned
// by Wake and not in the function's snapshot.
func (l *coldStartLog) beginExtra(f *functionState) *coldStart {
	return l.record(f, l.inbox.newID("cs"), l.clock.timeNow())
}

func (l *coldStartLog) record(f *functionState, id string, at time.Time) *coldStart {
	c := &coldStart{function: f, began: l.clock.instant(at), Timeline: functions.Timeline{
		ID: id, Function: f.Name.String(), Began: at, State: functions.Downloading, Progress: functions.NoProgress,
	}}
	l.add(c)
	return c
}

// finishColdStart ends a cold start. The next wake begins another.
func (o *Orchestrator) finishColdStart(c *coldStart, st functions.State, cause string) {
	if c == nil || c.over {
		return
	}
	c.end = o.now()
	if c.replica != nil && st == functions.Ready {
		c.end = c.replica.readyAt
	}
	t := c.timeline(c.end)
	c.over, c.function.RetryOn = true, ""
	if c.function.coldStart == c {
		o.coldStarts.starting.Drop(c.function)
	}
	t.State, t.Error = st, cause
	t.Progress = functions.Progress{State: st, Percent: t.Progress.Percent, Bytes: t.Progress.Bytes, Total: t.Progress.Total, ETA: -1}
	if st == functions.Ready {
		t.Progress.Percent, t.Progress.ETA = 100, 0
	}
	c.Timeline = t
	if c.function.model != nil {
		o.counts.recordStaged(c.function.model.Spec.Source, t)
	}
	o.dropStartID(c.function.Name, c.ID)
	if st == functions.Ready {
		phases := map[functions.Phase]time.Duration{}
		for _, p := range t.Phases {
			phases[p.Phase] += boundedSeconds(p.Duration)
		}
		c.function.starts.Add(forecast.StartSample{Node: t.Node, Tier: t.Tier, Total: c.end - c.began, Start: c.end - c.decided, FromDeepSleep: c.fromDeepSleep, Phases: phases})
		if n := o.nodes[t.Node]; n != nil && n.recordRates(t.Tier, t.Bytes, phases) {
			o.planner.NodeChanged(n.Node)
		}
	}
	if o.started != nil {
		o.started(t)
	}
}

// boundedSeconds converts seconds that an agent reported, bounded against overflow.
func boundedSeconds(f float64) time.Duration {
	return time.Duration(max(0, min(f, 1e7)) * float64(time.Second))
}

// timeline returns the timeline of c at now.
func (c *coldStart) timeline(now placement.Instant) functions.Timeline {
	t := c.Timeline
	if c.over {
		return t
	}
	if c.end > 0 {
		now = c.end
	}
	span := func(p functions.Phase, from, to placement.Instant) {
		t.Phases = append(t.Phases, functions.Span{Phase: p, Start: (from - c.began).Seconds(), Duration: max(0, to-from).Seconds()})
	}
	t.Phases = nil
	t.Total = (now - c.began).Seconds()
	if c.decided == 0 {
		span(functions.PhaseQueue, c.began, now)
		t.Progress = functions.Progress{State: functions.Downloading, Percent: -1, ETA: c.eta(now)}
		return t
	}
	span(functions.PhaseQueue, c.began, c.decided)
	if c.placed == 0 {
		span(functions.PhasePlace, c.decided, now)
	} else {
		span(functions.PhasePlace, c.decided, c.placed)
	}
	if r := c.replica; r != nil {
		t.Replica, t.Node = r.id, r.node
		t.Start, t.StartNote = r.status.Start, r.status.StartNote
		t.Bytes = max(t.Bytes, r.status.TotalBytes)
		if r.status.State != "" {
			t.State = r.status.State
		}
		// The agent's spans count from its receipt of the load.
		from := c.decided
		for _, p := range r.status.Phases {
			if r.sleep.wakingUp && r.status.State == functions.Sleeping {
				break // they are spans of its previous start
			}
			p.Start += (from - c.began).Seconds()
			if last := &t.Phases[len(t.Phases)-1]; p.Phase == functions.PhasePlace && last.Phase == p.Phase {
				// Both report the phase: the agent continues a phase that this loop began,
				// such as the scheduling of a pod.
				last.Duration = max(last.Duration, p.Start+p.Duration-last.Start)
				continue
			}
			p.Parts = slices.Clone(p.Parts) // the replica's slice must not change
			for i := range p.Parts {
				p.Parts[i].Start += (from - c.began).Seconds()
			}
			t.Phases = append(t.Phases, p)
		}
		t.Progress = functions.Progress{State: t.State, Percent: r.status.Percent, Bytes: r.status.Bytes, Total: r.status.TotalBytes}
	}
	t.Progress.ETA = c.eta(now)
	if eta := t.Progress.ETA; eta >= 0 {
		whole := now - c.began + eta
		if whole > 0 {
			t.Progress.Percent = int(100 * (now - c.began) / whole)
		}
	}
	// Progress never decreases, and is 100 only at the end.
	if t.Progress.Percent >= 0 {
		c.percent = max(c.percent, min(t.Progress.Percent, 99))
		t.Progress.Percent = c.percent
	}
	return t
}

// eta estimates the rest of a cold start: the remaining bytes over the measured rate (or
// the history before one is measured), then the usual load and warm-up; the engine
// boots during staging. -1 if unknown.
func (c *coldStart) eta(now placement.Instant) time.Duration {
	f := c.function
	if c.Tier == functions.TierSleeping {
		if usual := f.starts.WakeTime(c.fromDeepSleep, 50); usual >= 0 {
			return max(0, usual-(now-c.began))
		}
		return -1
	}
	engine, node := functions.Engine(""), c.Node
	if f.model != nil {
		engine = f.model.Spec.Engine
	}
	if c.replica != nil {
		node = c.replica.node
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
	reported := c.decided // how far the phases reach: a phase is reported when it ends
	if c.replica != nil {
		st = c.replica.status
		for _, p := range st.Phases {
			spent[p.Phase] = boundedSeconds(p.Duration)
			under = p.Phase
			reported = max(reported, c.decided+boundedSeconds(p.Start)+boundedSeconds(p.Duration))
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
	if since := now - reported; c.decided > 0 && since > 0 {
		return max(whole-since, since/10)
	}
	return whole
}
