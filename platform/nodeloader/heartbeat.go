package nodeloader

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

const (
	heartbeatEvery = 2 * time.Second
	storePollEvery = 5 // heartbeats for each listing of the store, without new stagings
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
