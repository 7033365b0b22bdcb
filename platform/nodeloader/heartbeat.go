package nodeloader

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

const (
	heartbeatEvery = 2 * time.Second
	trimEvery      = 10 * time.Second // as often as the kubelet looks at the disk
	storePollEvery = 5                // heartbeats for each listing of the store, without new stagings
)

// counters holds the totals of the daemon's metrics.
type counters struct {
	staged, failed, refused, used, wasted atomic.Int64
}

// sendHeartbeats reports the node's checkpoints to the controller until ctx ends.
func (d *Daemon) sendHeartbeats(ctx context.Context, dropLeases func()) {
	t := time.NewTicker(heartbeatEvery)
	defer t.Stop()
	adopted := time.NewTimer(adoptedFor)
	defer adopted.Stop()
	evictions := int64(-1)
	for n := 0; ; n++ {
		// Removals by another process appear at the next listing.
		if gone := d.o.Store.Checkpoints().Stats().Evictions; n%storePollEvery == 0 || gone != evictions {
			evictions = gone
			if err := d.o.Store.Refresh(); err != nil {
				d.o.Log.Warn("the store cannot be listed", "error", err)
			}
		}
		hb := d.heartbeat()
		d.o.Send(controlstream.Report{Node: &hb})
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			d.o.Store.MeasureRate(now)
		case <-d.changes:
			n = -1
		case <-adopted.C:
			dropLeases()
		}
	}
}

// keepDiskFree evicts weights when images, logs and volumes fill the disk, before the kubelet
// evicts pods, until ctx ends.
func (d *Daemon) keepDiskFree(ctx context.Context) {
	for ok := true; ok; ok = backoff.Sleep(ctx, trimEvery) {
		if err := d.o.Store.Checkpoints().Trim(); err != nil {
			d.o.Log.Warn("the disk cannot be kept free", "error", err)
		}
	}
}

func (d *Daemon) heartbeat() functions.Heartbeat {
	use, cached := d.o.Store.Usage()
	hb := functions.Heartbeat{
		Life: d.instance, AgentID: d.o.Node, State: functions.NodeIdle, Version: d.o.Version, Machine: nodestore.Machine(),
		GPUs: []functions.GPU{}, Memory: functions.Capacity{Total: d.o.Memory}, Store: use, Cached: cached,
		Models: []functions.ReplicaStatus{}, PeerURL: d.o.PeerURL,
	}
	if use.Loader != nil && use.Loader.Stagings > 0 {
		hb.State = functions.NodeLoading
	}
	var seen strings.Builder
	fmt.Fprintln(&seen, d.o.PeerURL)
	for _, c := range cached {
		fmt.Fprintln(&seen, c.Source, c.Digest, c.Tier)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lastCached != seen.String() {
		d.lastCached = seen.String()
		d.changeCount++
	}
	d.seq++
	hb.Seq, hb.Change = d.seq, d.changeCount
	return hb
}

// FullReport returns the full sync for a newly connected controller.
func (d *Daemon) FullReport() controlstream.Report {
	hb := d.heartbeat()
	up := controlstream.Report{Node: &hb}
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, s := range d.shims {
		if s.status != nil {
			up.Pods = append(up.Pods, controlstream.Pod{UID: uid, Status: *s.status})
		}
	}
	return up
}

// Bounds of a status, far above real ones: the controller gets the statuses of all pods.
const (
	maxName  = 256  // bytes of a name
	maxText  = 4096 // bytes of a text for people
	maxItems = 256  // of a list
)

// sanitizeStatus keeps the fields of a status that a pod may report. The controller knows
// the replica by the UID. The engine's key stays in the pod, whose clients go through the
// shim. Memory is the pod's own: evicting others frees none for it.
func sanitizeStatus(st functions.ReplicaStatus) functions.ReplicaStatus {
	st.ID, st.Team, st.Model, st.Spec, st.Key, st.GPUs, st.ShortOf, st.GPUMemory = "", "", "", nil, "", nil, "", 0
	st.State, st.Tier = functions.State(clipText(string(st.State), maxName)), functions.Tier(clipText(string(st.Tier), maxName))
	st.Endpoint, st.Start = clipText(st.Endpoint, maxName), clipText(st.Start, maxName)
	st.Error, st.StartNote = clipText(st.Error, maxText), clipText(st.StartNote, maxText)
	st.Phases = st.Phases[:min(len(st.Phases), maxItems)]
	parts := maxItems
	for i := range st.Phases {
		p := &st.Phases[i]
		p.Phase = functions.Phase(clipText(string(p.Phase), maxName))
		p.Parts = p.Parts[:min(len(p.Parts), parts)]
		parts -= len(p.Parts)
		for j := range p.Parts {
			p.Parts[j].Name = clipText(p.Parts[j].Name, maxName)
		}
	}
	st.Adapters = st.Adapters[:min(len(st.Adapters), maxItems)]
	for i := range st.Adapters {
		st.Adapters[i] = clipText(st.Adapters[i], maxName)
	}
	if len(st.AdapterNotes) > maxItems {
		st.AdapterNotes = nil
	}
	for name, note := range st.AdapterNotes {
		if len(name) > maxName {
			delete(st.AdapterNotes, name)
		} else if len(note) > maxText {
			st.AdapterNotes[name] = clipText(note, maxText)
		}
	}
	return st
}

func clipText(s string, n int) string { return s[:min(len(s), n)] }

// lineLimiter bounds the lines per second that are read from a pod.
type lineLimiter struct {
	perSecond int // lines a second
	since     time.Time
	count     int
}

// wait waits until the next line may be read; false if ctx ended first.
func (l *lineLimiter) wait(ctx context.Context) bool {
	now := time.Now()
	if now.Sub(l.since) >= time.Second {
		l.since, l.count = now, 0
	}
	if l.count++; l.count <= l.perSecond {
		return true
	}
	return backoff.Sleep(ctx, l.since.Add(time.Second).Sub(now))
}
