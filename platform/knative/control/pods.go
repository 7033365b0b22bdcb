package control

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
)

// pod is a pod on its way to being, or being, a replica; or somebody else's, which
// takes room.
type pod struct {
	uid                types.UID
	namespace, name    string
	revisionName       functions.Name // the revision its label names
	rev                *revisionState // nil: none of ours
	replica            *replica       // the replica that it is
	node, ip           string
	gpus               int
	memory             functions.Bytes
	cpu                functions.CPU
	created            time.Time
	terminating        bool
	ended              bool // its containers have ended for good: its room is free
	running, ready     bool // its container; the pod as Kubernetes sees it
	unscheduled        string
	unscheduledAt      time.Time
	problem            string // why it will not come up
	forceDeleted       bool
	probing, probed    bool      // of one without the shim
	startedAt, readyAt time.Time // since when its shim speaks, or its container runs; and since when that takes requests
	reported           *functions.ReplicaStatus
	shimGone           bool // its shim has hung up
}

// unschedulable is how long a pod may find no node before its replica has failed.
// What was counted as free a moment ago may be in the act of being freed.
const unschedulable = 15 * time.Second

// shimSilence is how long the shim of a pod that Kubernetes calls ready may say nothing
// before it is believed without: the loader of its node may be away.
const shimSilence = 3 * time.Second

// timeChangesState reports whether time alone may have changed what a pod's replica is.
func (p *pod) timeChangesState(now time.Time) bool {
	return p.unscheduled != "" && now.Sub(p.unscheduledAt) >= unschedulable || p.ready && p.reported == nil
}

// spawned reports whether its engine has a process.
func (p *pod) spawned() bool {
	if p.reported != nil {
		return p.reported.State != functions.Downloading || slices.ContainsFunc(p.reported.Phases, func(s functions.Span) bool { return s.Phase == functions.PhaseSpawn })
	}
	return p.running && p.rev != nil && !p.rev.shim
}

// SetPod takes in what the API server says of a pod.
func (f *clusterState) SetPod(k *corev1.Pod) {
	var hurry, ask bool
	f.mu.Lock()
	p := f.pods[k.UID]
	if p == nil {
		p = &pod{uid: k.UID, namespace: k.Namespace, name: k.Name, created: k.CreationTimestamp.Time}
		if r := k.Labels[serving.RevisionLabelKey]; r != "" {
			p.revisionName = functions.Name{Team: k.Namespace, Name: r}
		}
		f.pods[k.UID] = p
	}
	p.rev = f.revisions[p.revisionName]
	before := p.node
	was := *p
	p.update(k, f.o.now())
	if p.terminating && !was.terminating && p.replica != nil && !p.replica.ending {
		// Somebody else has ended it: its Deployment makes another.
		p.replica.rev.lost = append(p.replica.rev.lost, f.o.now())
	}
	switch {
	case p.ended && p.replica != nil && (p.terminating || p.replica.ending):
		f.unbind(p)
	case p.replica != nil && p.node != before:
		f.moveReplica(p.replica)
	default:
		f.bind(p)
	}
	if w := p.replica; w != nil {
		f.markNode(w.node)
		if p.terminating && !was.terminating {
			f.dueScales[w.rev.name] = true // its Deployment may grow again
		}
	} else {
		f.markNode(p.node)
	}
	hurry = f.mayForceDelete(p)
	if p.rev != nil && !p.rev.shim && p.running && p.ip != "" && !p.probing && !p.terminating {
		p.probing, ask = true, true
	}
	f.mu.Unlock()
	if ask {
		f.o.probe(probe{uid: p.uid, ip: p.ip})
	}
	if hurry {
		f.forceDelete(p)
	}
	f.notifyRevision(p)
}

// mayForceDelete reports, once, that a pod is to be taken out of the books of Kubernetes
// though its proxy will be there for half a minute more: it is to end, and its shim
// has said that the engine has. Under mu.
func (f *clusterState) mayForceDelete(p *pod) bool {
	r := p.rev
	if p.replica != nil {
		r = p.replica.rev // which may be there no more, and its pods still are
	}
	if r == nil || !p.terminating || p.forceDeleted || p.ended || !r.shim {
		return false
	}
	p.forceDeleted = p.shimGone || p.reported != nil && p.reported.State == functions.Unloaded
	return p.forceDeleted
}

// DropPod takes in that a pod is gone.
func (f *clusterState) DropPod(uid types.UID) {
	f.mu.Lock()
	p := f.pods[uid]
	if p == nil {
		f.mu.Unlock()
		return
	}
	if p.replica != nil && !p.replica.ending && !p.terminating {
		p.replica.rev.lost = append(p.replica.rev.lost, f.o.now())
	}
	delete(f.pods, uid)
	f.unbind(p)
	f.markNode(p.node)
	f.mu.Unlock()
	f.notifyRevision(p)
}

// unbind ends the replica that a pod was. Under mu.
func (f *clusterState) unbind(p *pod) {
	w := p.replica
	if w == nil {
		return
	}
	p.replica = nil
	delete(f.replicas, w.id)
	f.dueScales[w.rev.name] = true
	f.markNode(w.node)
}

func (f *clusterState) notifyRevision(p *pod) {
	if p.revisionName.Name != "" && f.o.changed != nil {
		f.o.changed(p.revisionName)
	}
}

// OnProbeSuccess takes in that a pod without the shim answers.
func (f *clusterState) OnProbeSuccess(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[uid]; p != nil {
		p.probed = true
		if p.replica != nil {
			f.markNode(p.replica.node)
		}
	}
}

// NeedsProbe reports whether a pod is still worth being asked.
func (f *clusterState) NeedsProbe(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pods[uid]
	return p != nil && !p.terminating && !p.ended && !p.probed
}

// OnPodStatus takes in what shims say by way of their node's loader; whole: that is all
// there are on it.
func (f *clusterState) OnPodStatus(node string, whole bool, pods []controlstream.Pod) {
	now := f.o.now()
	var over []*pod
	defer func() {
		for _, p := range over {
			f.forceDelete(p)
		}
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range pods {
		said := &pods[i]
		p := f.pods[types.UID(said.UID)]
		if p == nil || p.node != "" && p.node != node {
			continue // not seen yet: it says it again in 2 s
		}
		if said.Gone {
			p.shimGone = true
		} else {
			p.reported, p.shimGone = &said.Status, false
			if p.startedAt.IsZero() {
				p.startedAt = now
			}
			if p.node == "" { // its loader knows it before the API server tells
				p.node = node
				if p.replica != nil {
					f.moveReplica(p.replica)
				}
			}
			f.bind(p)
		}
		if p.replica != nil {
			f.markNode(p.replica.node)
		}
		if f.mayForceDelete(p) {
			over = append(over, p)
		}
	}
	if n := f.nodes[node]; n != nil {
		n.connected = true
	}
}

// update takes over what matters of a pod.
func (p *pod) update(k *corev1.Pod, now time.Time) {
	p.node = cmp.Or(k.Spec.NodeName, p.node)
	p.ip = cmp.Or(k.Status.PodIP, p.ip)
	p.terminating = k.DeletionTimestamp != nil
	p.ended = k.Status.Phase == corev1.PodSucceeded || k.Status.Phase == corev1.PodFailed
	res := podResources(&k.Spec)
	p.gpus, p.memory, p.cpu = res.GPUs, res.Memory, res.CPU
	p.ready, p.running, p.problem = false, false, ""
	unscheduled := ""
	for _, c := range k.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			p.ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			unscheduled = c.Message
		}
	}
	if unscheduled != "" && p.unscheduled == "" {
		p.unscheduledAt = now
	}
	p.unscheduled = unscheduled
	for _, c := range k.Status.InitContainerStatuses {
		p.noteContainer(&c)
	}
	for _, c := range k.Status.ContainerStatuses {
		p.noteContainer(&c)
		if c.Name != "queue-proxy" && c.State.Running != nil {
			p.running = true
		}
	}
	if p.ended && p.problem == "" && k.Status.Phase == corev1.PodFailed {
		p.problem = cmp.Or(k.Status.Message, k.Status.Reason, "the pod failed")
	}
}

// podResources is what a pod takes of its node by what it asks for: the sum of its
// containers, or what one that comes before them asks for where that is more, and
// what its runtime takes beside.
func podResources(spec *corev1.PodSpec) functions.Resources {
	of := func(c *corev1.Container) (out functions.Resources) {
		if q, ok := c.Resources.Limits[knative.GPU]; ok {
			out.GPUs = int(q.Value())
		}
		out.Memory = functions.Bytes(c.Resources.Requests.Memory().Value())
		out.CPU = functions.CPU(c.Resources.Requests.Cpu().MilliValue())
		return out
	}
	sum := functions.Resources{Pods: 1}
	for i := range spec.Containers {
		c := of(&spec.Containers[i])
		sum.GPUs, sum.Memory, sum.CPU = sum.GPUs+c.GPUs, sum.Memory+c.Memory, sum.CPU+c.CPU
	}
	for i := range spec.InitContainers {
		c := of(&spec.InitContainers[i])
		sum.GPUs, sum.Memory, sum.CPU = max(sum.GPUs, c.GPUs), max(sum.Memory, c.Memory), max(sum.CPU, c.CPU)
	}
	sum.Memory += functions.Bytes(spec.Overhead.Memory().Value())
	sum.CPU += functions.CPU(spec.Overhead.Cpu().MilliValue())
	return sum
}

// waitingProblems are reasons of a waiting container that do not pass by themselves.
var waitingProblems = map[string]string{
	"ErrImagePull":               "its image cannot be pulled",
	"ImagePullBackOff":           "its image cannot be pulled",
	"InvalidImageName":           "its image has no valid name",
	"ErrImageNeverPull":          "its image is not on the node",
	"CreateContainerConfigError": "its container cannot be made",
	"CreateContainerError":       "its container cannot be made",
	"RunContainerError":          "its container cannot be started",
	"CrashLoopBackOff":           "its container ends again and again",
}

func (p *pod) noteContainer(c *corev1.ContainerStatus) {
	if p.problem != "" {
		return
	}
	w, t := c.State.Waiting, c.State.Terminated
	if w != nil {
		if what := waitingProblems[w.Reason]; what != "" {
			p.problem = what
			if last := c.LastTerminationState.Terminated; w.Reason == "CrashLoopBackOff" && last != nil {
				p.problem = exitReason(last)
			} else if w.Message != "" {
				p.problem += ": " + lastLine(w.Message)
			}
		}
		return
	}
	if t != nil && t.ExitCode != 0 {
		p.problem = exitReason(t)
	}
}

func exitReason(t *corev1.ContainerStateTerminated) string {
	if t.Message != "" {
		return lastLine(t.Message)
	}
	if t.Reason == "OOMKilled" {
		return "its container ran out of memory"
	}
	return fmt.Sprintf("its container ended with exit code %d", t.ExitCode)
}

// lastLine is the last line of a message, bounded.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	if len(s) > 500 {
		s = s[:500] + "…"
	}
	return s
}

// replicaStatus is a replica as steer hears of it. Under mu.
func (f *clusterState) replicaStatus(w *replica, now time.Time) functions.ReplicaStatus {
	st := f.replicaState(w, now)
	st.ID, st.Team, st.Model, st.GPUs = w.id, w.rev.name.Team, w.rev.name.Name, w.gpus
	if w.lastStatus.State != st.State {
		w.stateSince = now
	}
	if p := w.pod; p != nil {
		if p.startedAt.IsZero() && p.running && !w.rev.shim {
			p.startedAt = now
		}
		if p.readyAt.IsZero() && st.State == functions.Ready {
			p.readyAt = now
		}
	}
	st.Phases = w.phases(st.Phases, now)
	w.lastStatus = st
	st.Since = now.Sub(w.stateSince).Milliseconds()
	return st
}

// phases are those of a start, counted from when the replica was asked for: first
// its pod finds its place and comes up there, then its shim tells of the rest. A pod
// without one has a process, and that is all that is known.
func (w *replica) phases(told []functions.Span, now time.Time) []functions.Span {
	came := now
	if w.pod != nil && !w.pod.startedAt.IsZero() {
		came = w.pod.startedAt
	}
	place := max(0, came.Sub(w.plannedAt).Seconds())
	out := []functions.Span{{Phase: functions.PhasePlace, Duration: place}}
	if w.pod == nil || w.pod.startedAt.IsZero() {
		return out
	}
	if !w.rev.shim {
		up := now
		if !w.pod.readyAt.IsZero() {
			up = w.pod.readyAt
		}
		return append(out, functions.Span{Phase: functions.PhaseSpawn, Start: place, Duration: max(0, up.Sub(came).Seconds())})
	}
	for _, p := range told {
		p.Start += place
		p.Parts = slices.Clone(p.Parts)
		for i := range p.Parts {
			p.Parts[i].Start += place
		}
		out = append(out, p)
	}
	return out
}

// replicaState puts together what is known of a replica's pod: what its shim says counts
// most, and what Kubernetes says where there is none, or where it says that the
// pod is no more.
func (f *clusterState) replicaState(w *replica, now time.Time) functions.ReplicaStatus {
	p := w.pod
	st := functions.ReplicaStatus{State: functions.Downloading, Percent: -1}
	failed := func(why string) functions.ReplicaStatus {
		st.State, st.Error = functions.Failed, why
		return st
	}
	switch {
	case w.ending || p != nil && p.terminating:
		if p != nil && p.reported != nil {
			st = *p.reported
		}
		st.State, st.Error = functions.Draining, ""
		return st
	case p == nil && w.rev.refusal != "" && now.Sub(w.rev.refusedAt) > time.Second:
		return failed(w.rev.refusal)
	case p == nil:
		return st
	case p.problem != "":
		if p.reported != nil && p.reported.State == functions.Failed && p.reported.Error != "" {
			return failed(p.reported.Error)
		}
		return failed(p.problem)
	case p.ended:
		return failed("the pod has ended")
	case p.unscheduled != "" && p.node == "" && now.Sub(p.unscheduledAt) >= unschedulable:
		return failed("Kubernetes finds no node for it: " + lastLine(p.unscheduled))
	case p.reported != nil && !p.shimGone:
		st = *p.reported
		if st.State == functions.Unloaded { // Kubernetes has not said so yet
			st.State = functions.Draining
		}
		if st.Endpoint != "" {
			if st.Endpoint = f.endpoint(p, st.Endpoint); st.Endpoint == "" && st.State == functions.Ready {
				st.State = functions.Loading
			}
		}
		return st
	case !w.rev.shim && (p.probed || p.ready) && p.ip != "":
		st.State, st.Endpoint = functions.Ready, "http://"+net.JoinHostPort(p.ip, strconv.Itoa(queueProxy))
		return st
	case w.rev.shim && p.ready && p.ip != "" && now.Sub(w.plannedAt) > shimSilence:
		// No loader tells of it, and Kubernetes has asked it.
		st.State, st.Endpoint = functions.Ready, "http://"+net.JoinHostPort(p.ip, strconv.Itoa(queueProxy))
		return st
	case p.running:
		st.State = functions.Loading
		return st
	}
	return st
}

// endpoint is where requests for a pod go. It says the port. Its address is what
// Kubernetes says; before that has, what it says itself, unless it is another
// pod's: a pod could have the activators ask engines that only they may ask. Under mu.
func (f *clusterState) endpoint(p *pod, said string) string {
	u, err := url.Parse(said)
	if err != nil || u.Scheme != "http" || u.Port() == "" {
		return ""
	}
	if p.ip != "" {
		return "http://" + net.JoinHostPort(p.ip, u.Port())
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() {
		return ""
	}
	for _, other := range f.pods {
		if other != p && other.ip != "" && ip.Equal(net.ParseIP(other.ip)) && !other.ended {
			return ""
		}
	}
	return "http://" + net.JoinHostPort(ip.String(), u.Port())
}

// NotReadyEndpoints are the replicas of a revision that its picture has no READY ones for, and at
// whose door a shim takes requests ahead: an activator sends it those that it would
// let through first, and they wait where the word READY is said. One that is READY and
// in no picture any more is about to be told to stop.
func (f *clusterState) NotReadyEndpoints(of *snapshot.Snapshot) (out []snapshot.Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[of.Name]
	if r == nil || !r.shim {
		return nil
	}
	for _, w := range f.replicas {
		p := w.pod
		if w.rev != r || w.ending || p == nil || p.terminating || p.ended || p.problem != "" || p.reported == nil || p.shimGone {
			continue
		}
		if of.HasReplica(w.id) {
			w.published = true
			continue
		}
		switch state := p.reported.State; {
		case state == functions.Ready && !w.published, // steer may hear of it a moment later
			state == functions.Downloading, state == functions.Loading:
			if at := f.endpoint(p, p.reported.Endpoint); at != "" {
				out = append(out, snapshot.Replica{ID: w.id, Node: w.node, Endpoint: at})
			}
		}
	}
	slices.SortFunc(out, func(a, b snapshot.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// queueProxy is the port at which Knative's proxy of a pod takes requests.
const queueProxy = 8012

// nodeFacts are what a node has, in a form that can be compared.
type nodeFacts struct {
	ready, cordoned bool
	gpus            int
	gpuName         string
	gpuMemory       functions.Bytes
	memory          functions.Bytes
	cpu             functions.CPU
	pods            int
	version         string
	labels          map[string]string
	taints          []functions.Taint // that keep pods off
}

func (n *nodeFacts) equal(o *nodeFacts) bool {
	return n.ready == o.ready && n.cordoned == o.cordoned && n.gpus == o.gpus && n.gpuName == o.gpuName && n.gpuMemory == o.gpuMemory &&
		n.memory == o.memory && n.cpu == o.cpu && n.pods == o.pods && n.version == o.version && maps.Equal(n.labels, o.labels) && slices.Equal(n.taints, o.taints)
}

// unknownMemory is that of a GPU of which nobody says how much it has: not ours to
// limit.
const unknownMemory functions.Bytes = math.MaxInt64 / 4

func readNodeFacts(k *corev1.Node) *nodeFacts {
	n := &nodeFacts{cordoned: k.Spec.Unschedulable, version: k.Status.NodeInfo.KubeletVersion, gpuMemory: unknownMemory, labels: k.Labels}
	for _, c := range k.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, t := range k.Spec.Taints {
		if t.Key != string(knative.GPU) && (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) {
			n.taints = append(n.taints, functions.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	if q, ok := k.Status.Allocatable[knative.GPU]; ok {
		n.gpus = int(min(max(q.Value(), 0), 1024))
	}
	if q, ok := k.Status.Allocatable[corev1.ResourceMemory]; ok {
		n.memory = functions.Bytes(q.Value())
	}
	if q, ok := k.Status.Allocatable[corev1.ResourceCPU]; ok {
		n.cpu = functions.CPU(q.MilliValue())
	}
	if q, ok := k.Status.Allocatable[corev1.ResourcePods]; ok {
		n.pods = int(min(max(q.Value(), 0), math.MaxInt32))
	}
	// As NVIDIA's GPU feature discovery labels nodes: MiB, and the product's name.
	n.gpuName = k.Labels["nvidia.com/gpu.product"]
	if m, err := strconv.ParseInt(k.Labels["nvidia.com/gpu.memory"], 10, 64); err == nil && m > 0 && m < 1<<30 {
		n.gpuMemory = functions.Bytes(m << 20)
	}
	return n
}

// gpuList is the GPUs of a node that replicas may have: all but as many as
// strangers hold, of those that no replica holds.
func (n *nodeFacts) gpuList(held map[int]bool, strangers int) []functions.GPU {
	var out []functions.GPU
	for i := n.gpus - 1; i >= 0; i-- {
		if strangers > 0 && !held[i] {
			strangers--
			continue
		}
		out = append(out, functions.GPU{Index: i, Name: n.gpuName, MemoryTotal: n.gpuMemory, MemoryFree: n.gpuMemory, Health: "ok"})
	}
	slices.Reverse(out)
	return out
}

// sameHeartbeat reports whether b says of a node what a said, but for times and use.
func sameHeartbeat(a, b *functions.Heartbeat) bool {
	return a.State == b.State && a.Memory.Total == b.Memory.Total && a.CPU == b.CPU && a.Pods == b.Pods && slices.Equal(a.Bars, b.Bars) && a.PeerURL == b.PeerURL &&
		slices.Equal(a.GPUs, b.GPUs) && slices.Equal(a.Cached, b.Cached) && a.Store.Bytes == b.Store.Bytes &&
		slices.EqualFunc(a.Models, b.Models, func(x, y functions.ReplicaStatus) bool {
			return x.ID == y.ID && x.State == y.State && x.Endpoint == y.Endpoint && x.Percent == y.Percent && x.Bytes == y.Bytes && x.TotalBytes == y.TotalBytes && x.Error == y.Error && slices.Equal(x.Adapters, y.Adapters) && len(x.Phases) == len(y.Phases)
		})
}

// forceDelete has a pod whose engine has ended forgotten. Knative's proxy in it waits half
// a minute for requests that will not come, and until then the pod's GPUs would be
// taken; the kubelet ends what is left of it in its own time.
func (f *clusterState) forceDelete(p *pod) { f.o.forceDelete(p.namespace, p.name, p.uid) }
