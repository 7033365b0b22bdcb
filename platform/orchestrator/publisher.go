package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/events"
	"github.com/thaw-dev/thaw/platform/placement"
)

// publisher gives the snapshots of functions to the data path.
type publisher struct {
	*world
	path       DataPath
	changes    events.Followers[struct{}]
	lostAgents []string          // URLs of lost agents, to be cut after the loss is published
	progress   time.Duration     // between two publications of the progress of a cold start
	progressAt placement.Instant // of the last one
}

func (p *publisher) publishChanged() {
	defer func() { // after publishing: cut requests pick another replica from the new snapshots
		for _, url := range p.lostAgents {
			p.path.AbortThrough(url)
		}
		p.lostAgents = nil
	}()
	if len(p.unpublished) == 0 {
		return
	}
	out := make([]snapshot.Snapshot, 0, len(p.unpublished))
	for _, f := range p.unpublished {
		f.toPublish = false
		if !f.Gone {
			out = append(out, p.snapshotOf(f))
		}
	}
	clear(p.unpublished)
	p.unpublished = p.unpublished[:0]
	if len(out) > 0 {
		p.path.Publish(out...)
		p.changes.Send(struct{}{})
	}
}

func (p *publisher) snapshotOf(f *functionState) snapshot.Snapshot {
	out := snapshot.Snapshot{
		Name: f.Name, Model: f.model, Progress: functions.NoProgress,
		Forecast: f.forecastStart(p.bytesAtHand(f)), Failure: f.failure, Blocked: f.blocked,
	}
	for _, r := range f.replicas {
		if r.Stopping || r.Cancelled {
			continue
		}
		st := r.status.State
		if r.serves() && r.status.Endpoint != "" {
			out.Replicas = append(out.Replicas, snapshot.Replica{
				ID: r.ID, Endpoint: r.status.Endpoint, Key: r.status.Key, Adapters: r.status.Adapters, EngineQueue: r.status.QueueLength,
				HitRate: r.status.KVCacheHitRate,
				Weights: r.status.Weights,
			})
		}
		out.Sleeping = out.Sleeping || st == functions.Sleeping
	}
	out.State = f.state()
	if f.coldStart != nil {
		t := f.coldStart.At(p.now())
		out.ColdStart = &t
		if !f.coldStart.Over {
			out.Progress = t.Progress
		}
	}
	return out
}

func (p *publisher) publishProgress(starting []*functionState, now placement.Instant) {
	if p.progress <= 0 || now-p.progressAt < p.progress {
		return
	}
	p.progressAt = now
	for _, f := range starting {
		if f.coldStart.Target != nil {
			p.markUnpublished(f)
		}
	}
}
