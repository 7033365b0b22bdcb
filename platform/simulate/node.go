package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// node is a simulated host with its agent: it executes the orchestrator's commands and
// sends heartbeats.
type node struct {
	st   *State
	id   string
	kind *fleet.HostKind

	gpus  []functions.GPU // never modified after a heartbeat refers to it
	taken []float64       // share of each GPU that replicas hold
	store checkpointStore
	reps  []*replica // by id

	link, disk, copy *pipe

	epoch      int64 // highest epoch of a command
	dead       bool  // powered off
	mute       bool  // partitioned
	pushing    bool  // a heartbeat is scheduled
	changed    bool  // since the last heartbeat document
	staging    int   // replicas whose bytes are being staged
	doc        functions.Heartbeat
	boots      int    // boots
	heartbeats uint64 // heartbeats since boot
	changes    uint64 // heartbeat documents since boot
}

const (
	beatEvery = 2 * time.Second
	keepEnded = time.Minute // how long heartbeats report an ended replica
)

func newNode(st *State, id string, kind *fleet.HostKind) *node {
	n := &node{
		st: st, id: id, kind: kind, taken: make([]float64, kind.GPUs), changed: true,
		link: &pipe{rate: float64(kind.Link)}, disk: &pipe{rate: float64(kind.Disk)}, copy: &pipe{rate: float64(kind.Copy)},
		store: checkpointStore{budget: kind.Store, checkpoints: map[string]*simCheckpoint{}},
	}
	n.gpus = make([]functions.GPU, kind.GPUs)
	for i := range n.gpus {
		n.gpus[i] = functions.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", id, i), Name: "simulated", MemoryTotal: kind.GPUMemory,
			MemoryFree: kind.GPUMemory, Health: "ok"}
	}
	return n
}

func (n *node) url() string { return "http://" + n.id }

// push schedules a heartbeat; changes at the same time share one.
func (n *node) push() {
	n.changed = true
	if !n.pushing && !n.dead {
		n.pushing = true
		n.st.After(n.st.c.Latency, func() {
			n.pushing = false
			n.beat()
		})
	}
}

// note marks a change for the next regular heartbeat.
func (n *node) note() {
	n.changed = true
	if n.st.clientsTimeOut() {
		n.push()
	}
}

func (n *node) beat() {
	if n.dead || n.mute {
		return
	}
	if n.changed || n.staging > 0 && n.st.clientsTimeOut() {
		n.document()
	}
	n.heartbeats++
	n.doc.Seq = n.heartbeats
	n.st.deliverHeartbeat(n)
}

// document builds the heartbeat document. Slices of earlier documents are not modified:
// receivers still hold them.
func (n *node) document() {
	n.changed = false
	n.changes++
	d := functions.Heartbeat{
		Life: strconv.Itoa(n.boots), Change: n.changes,
		AgentID: n.id, Epoch: n.epoch, State: functions.NodeIdle, Version: "simulated", URL: n.url(), Machine: n.id,
		GPUs: n.gpus, Memory: functions.Capacity{Total: n.kind.Memory}, Store: functions.StoreUse{Bytes: n.kind.Store, Used: n.store.used},
		Cached: n.store.cached(), Models: make([]functions.ReplicaStatus, len(n.reps)),
	}
	for i, r := range n.reps {
		r.status(&d.Models[i])
		d.Memory.Used += r.hostMemory()
		switch r.state {
		case functions.Downloading, functions.Loading:
			d.State = functions.NodeLoading
		case functions.Ready:
			if len(r.work.requests) > 0 && d.State == functions.NodeIdle {
				d.State = functions.NodeInferring
			}
		}
	}
	for i := range n.gpus {
		if n.gpus[i].Health != "ok" {
			d.State = functions.NodeDegraded
		}
	}
	n.doc = d
}

// checkRoom returns an error if req's replica does not fit beside the present ones.
func (n *node) checkRoom(req *functions.LoadRequest) error {
	r := req.Spec.Resources
	if len(req.GPUs) < r.GPUs {
		return fmt.Errorf("%d GPUs are named, %d wanted", len(req.GPUs), r.GPUs)
	}
	for _, g := range req.GPUs {
		if g < 0 || g >= len(n.taken) {
			return fmt.Errorf("there is no GPU %d", g)
		}
		if n.taken[g]+n.share(r) > 1+1e-9 {
			return fmt.Errorf("GPU %d is taken", g)
		}
	}
	var used functions.Bytes
	for _, x := range n.reps {
		used += x.hostMemory()
	}
	if used+r.Memory > n.kind.Memory {
		return errors.New("host memory is taken")
	}
	return nil
}

// share returns the fraction of one GPU that a replica uses.
func (n *node) share(r functions.Resources) float64 {
	if r.GPUMemory == 0 || n.kind.GPUMemory == 0 {
		return 1
	}
	return min(1, float64(r.GPUMemory)/float64(n.kind.GPUMemory))
}

func (n *node) find(id string) *replica {
	if i, ok := slices.BinarySearchFunc(n.reps, id, func(r *replica, id string) int { return cmp.Compare(r.id, id) }); ok {
		return n.reps[i]
	}
	return nil
}

func (n *node) forget(r *replica) {
	r.gen++
	delete(n.st.reps, r.id)
	n.reps = slices.DeleteFunc(n.reps, func(x *replica) bool { return x == r })
}

// Errors of a refused command.
var (
	errUnreachable = errors.New("no route to host")
	errReplyLost   = errors.New("the answer was lost")
	errNoReplica   = errors.New("no such replica here")
)

// checkReachable delivers a command to the node; an error means that it did not arrive.
func (n *node) checkReachable(epoch int64) error {
	if n.dead || n.mute {
		return errUnreachable
	}
	if epoch < n.epoch {
		return fmt.Errorf("epoch %d: %w (%d)", epoch, functions.ErrStaleEpoch, n.epoch)
	}
	if epoch > n.epoch {
		n.epoch, n.changed = epoch, true
	}
	return nil
}

// deliverReply delivers the reply; an error means that it is lost.
func (n *node) deliverReply() error {
	if n.st.Faults.LoseReply != nil && n.st.Faults.LoseReply() {
		return errReplyLost
	}
	return nil
}

// Load starts a replica. It is idempotent by id.
func (n *node) Load(_ context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	if err := n.checkReachable(req.Epoch); err != nil {
		return functions.LoadReply{}, err
	}
	r := n.find(req.ID)
	if r == nil {
		if err := n.checkRoom(&req); err != nil {
			n.st.tally.refusedForSpace++
			return functions.LoadReply{}, err
		}
		r = n.st.newReplica(n, req)
		i, _ := slices.BinarySearchFunc(n.reps, r.id, func(r *replica, id string) int { return cmp.Compare(r.id, id) })
		n.reps = slices.Insert(n.reps, i, r)
		r.begin()
		n.note()
	}
	return functions.LoadReply{ID: req.ID, State: r.state}, n.deliverReply()
}

// Unload stops a replica, or forgets an ended one. An unknown id is no error.
func (n *node) Unload(_ context.Context, req functions.UnloadRequest) error {
	if err := n.checkReachable(req.Epoch); err != nil {
		return err
	}
	r := n.find(req.ID)
	switch {
	case r == nil:
	case r.state.Over():
		n.forget(r)
		n.note()
	case req.Reason == functions.ReasonCalledOff:
		if !r.process {
			r.finish(functions.Unloaded, "")
		}
	default:
		r.unload(time.Duration(max(0, min(req.DrainSeconds, 86400)) * float64(time.Second)))
	}
	return n.deliverReply()
}

// Sleep puts a replica to sleep, or wakes it at level 0.
func (n *node) Sleep(_ context.Context, req functions.SleepRequest) error {
	if err := n.checkReachable(req.Epoch); err != nil {
		return err
	}
	r := n.find(req.ID)
	switch {
	case r == nil:
		return errNoReplica
	case req.Level == 0:
		r.wakeUp()
	default:
		r.fallAsleep(req.Level)
	}
	return n.deliverReply()
}

// Verify checks a replica that failed a request on the data path.
func (n *node) Verify(_ context.Context, id, _ string) error {
	if n.dead || n.mute {
		return errUnreachable
	}
	if r := n.find(id); r != nil {
		r.probe()
	}
	return nil
}

// trimPageCache bounds the page cache to the memory that replicas leave.
func (n *node) trimPageCache() {
	free := n.kind.Memory
	for _, r := range n.reps {
		free -= r.hostMemory()
	}
	n.store.trimMemory(max(free, 0))
}
