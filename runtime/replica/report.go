package replica

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// report is a replica's status: its state, its progress and the phases of its start. It is
// owned by Run's goroutine; status may be called from any.
type report struct {
	onChange  func(functions.ReplicaStatus) // nil: none
	adapters  *adapterSet
	log       *slog.Logger
	published atomic.Pointer[functions.ReplicaStatus]
	since     atomic.Int64 // unix nanoseconds of the present state

	now         functions.ReplicaStatus // published next
	began       time.Time               // phases count from here
	adopted     bool                    // an earlier agent recorded the phases
	notifyAfter time.Time               // progress is not reported before
}

func (r *report) status() functions.ReplicaStatus {
	s := *r.published.Load()
	s.Since = time.Since(time.Unix(0, r.since.Load())).Milliseconds()
	s.Adapters, s.AdapterNotes = r.adapters.list()
	return s
}

// enter changes the state; nothing else does.
func (r *report) enter(s functions.State) {
	if r.now.State == s {
		return
	}
	was := r.now.State
	r.now.State, r.now.Percent = s, -1
	switch s {
	case functions.Loading:
		r.now.Tier = functions.TierNVMe
	case functions.Ready:
		r.now.Tier = functions.TierDRAM
		if len(r.now.GPUs) > 0 {
			r.now.Tier = functions.TierGPU
		}
	}
	r.since.Store(time.Now().UnixNano())
	r.notify() // before it is logged: requests wait for READY
	r.log.Info("replica", "state", s, "was", was, "error", r.now.Error)
}

// wake enters LOADING_TO_GPU after a sleep. It is a start of its own: phases count from began.
func (r *report) wake(began time.Time) {
	r.began, r.adopted, r.now.Phases, r.now.SleepLevel = began, false, nil, 0
	r.enter(functions.Loading)
}

// end enters UNLOADED or FAILED.
func (r *report) end(s functions.State, staged bool) {
	r.now.Tier, r.now.Endpoint, r.now.Key = functions.TierRemote, "", ""
	if staged {
		r.now.Tier = functions.TierNVMe
	}
	r.now.EngineLoad, r.now.SleepLevel = functions.EngineLoad{}, 0
	r.enter(s)
}

func (r *report) notify() {
	r.publish()
	r.notifyAfter = time.Now().Add(200 * time.Millisecond)
	if r.onChange != nil {
		r.onChange(r.status())
	}
}

func (r *report) publish() {
	s := r.now
	s.Phases = slices.Clone(s.Phases)
	r.published.Store(&s)
}

// progress publishes a percentage and reports it at most five times a second.
func (r *report) progress(percent int) {
	if percent == r.now.Percent {
		return
	}
	r.now.Percent = percent
	if time.Now().Before(r.notifyAfter) {
		r.publish()
		return
	}
	r.notify()
}

// stagingProgress reports how much of a checkpoint is here, and what is wrong with its source.
func (r *report) stagingProgress(have, total functions.Bytes, problem string) {
	if have == r.now.Bytes && total == r.now.TotalBytes && problem == r.now.StartNote {
		return
	}
	r.now.Bytes, r.now.TotalBytes, r.now.Percent, r.now.StartNote = have, total, -1, problem
	if total > 0 {
		r.now.Percent = int(have * 100 / total)
	}
	r.notify()
}

// publishMetrics publishes the engine's counts, if they were read, without a report to the owner.
func (r *report) publishMetrics(m reading) {
	load := functions.EngineLoad{InFlight: m.Running, QueueLength: m.Waiting, KVCacheHitRate: m.HitRate}
	if m.err == nil && r.now.EngineLoad != load {
		r.now.EngineLoad = load
		r.publish()
	}
}

// addPhase records a phase. An adopted engine keeps the phases of its earlier agent.
func (r *report) addPhase(p functions.Phase, from, to time.Time) {
	if r.adopted {
		return
	}
	r.now.Phases = sortPhases(append(r.now.Phases, functions.Span{Phase: p, Start: from.Sub(r.began).Seconds(),
		Duration: to.Sub(from).Seconds()}))
}

// setLogPhases replaces the start's phases by the finished steps of the log, which are
// more precise than the times of endpoints.
func (r *report) setLogPhases(done []engine.Done, present functions.Phase) {
	var spans []functions.Span
	for _, d := range done {
		if d.Phase == present {
			break
		}
		part := functions.Part{Name: d.Name, Start: d.From.Sub(r.began).Seconds(), Duration: d.To.Sub(d.From).Seconds()}
		if n := len(spans); n == 0 || spans[n-1].Phase != d.Phase {
			spans = append(spans, functions.Span{Phase: d.Phase, Start: part.Start})
		}
		s := &spans[len(spans)-1]
		s.Duration += part.Duration
		s.Parts = append(s.Parts, part)
	}
	retained := r.now.Phases[:0:0]
	for _, p := range r.now.Phases {
		switch p.Phase {
		case functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup:
		default:
			retained = append(retained, p)
		}
	}
	r.now.Phases = sortPhases(append(retained, spans...))
}

// sortPhases sorts spans by the order of their phases.
func sortPhases(s []functions.Span) []functions.Span {
	slices.SortStableFunc(s, func(a, b functions.Span) int {
		return slices.Index(functions.Phases, a.Phase) - slices.Index(functions.Phases, b.Phase)
	})
	return s
}
