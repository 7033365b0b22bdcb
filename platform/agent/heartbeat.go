package agent

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

func (a *Agent) heartbeatLocked() functions.Heartbeat {
	a.heartbeats++
	hb := functions.Heartbeat{
		Life: a.instance, Seq: a.heartbeats,
		AgentID: a.o.ID, Epoch: a.epoch, State: functions.NodeIdle, Version: a.o.Version, URL: a.url, Machine: a.o.Machine, PeerURL: a.o.PeerURL,
		Borrows: a.o.SharedFolders,
		GPUs:    []functions.GPU{}, Memory: functions.Capacity{Total: a.o.Memory}, Sleep: a.o.Sleep,
		Models: make([]functions.ReplicaStatus, 0, len(a.replicas)),
	}
	for _, r := range a.replicas {
		st := r.Status()
		if a.o.GPUMemoryOf != nil {
			st.GPUMemory = a.o.GPUMemoryOf(r.id)
		}
		if st.Endpoint != "" && !a.loopback {
			st.Endpoint = strings.TrimRight(a.url, "/") + "/replicas/" + r.id
			st.Key = "" // requests through the agent need none
		}
		if !st.State.Over() {
			hb.Memory.Used += r.reserved
		}
		if st.SleepLevel == 1 && len(st.GPUs) > 0 {
			hb.Memory.Used += st.Bytes // level 1 keeps the weights in host memory
		}
		switch {
		case st.State == functions.Downloading || st.State == functions.Loading:
			hb.State = functions.NodeLoading
		case st.State == functions.Ready && hb.State == functions.NodeIdle &&
			a.requests.InFlightOf(functions.Name{Team: st.Team, Name: st.Model}, r.id) > 0:
			hb.State = functions.NodeInferring
		}
		hb.Models = append(hb.Models, st)
	}
	slices.SortFunc(hb.Models, func(x, y functions.ReplicaStatus) int { return strings.Compare(x.ID, y.ID) })
	parents, bytes := a.forkServers.Parents()
	hb.Warm = parents
	hb.Memory.Used += bytes
	if a.o.Inventory != nil {
		hb.GPUs = append(hb.GPUs, a.o.Inventory.GPUs()...)
		hb.Store, hb.Cached = a.o.Inventory.store.Usage()
	}
	if a.degradedReason != "" || slices.ContainsFunc(hb.GPUs, func(g functions.GPU) bool { return g.Health != "" && g.Health != "ok" }) {
		hb.State = functions.NodeDegraded
	}
	return hb
}
