package clusterstate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// pod is one of ours (a replica, starting or running) or a foreign pod that occupies its
// node.
type pod struct {
	uid                types.UID
	namespace, name    string
	revisionName       functions.Name // from its label
	rev                *revisionState // nil: a foreign pod
	replica            *replica       // nil: not bound
	node, ip           string
	requests           functions.Resources
	created            time.Time
	terminating        bool
	ended              bool // its containers have ended; it occupies nothing
	running, ready     bool // its container runs; Kubernetes' Ready condition
	unscheduled        string
	unscheduledAt      time.Time
	problem            string // why it cannot start
	forceDeleted       bool
	probing, probed    bool      // only without the shim
	startedAt, readyAt time.Time // first report of the shim, or start of the container; first time READY
	reported           *functions.ReplicaStatus
	shimGone           bool // its shim has disconnected
}

// active reports whether the pod starts or runs.
func (p *pod) active() bool { return !p.terminating && !p.ended }

// podSet are pods by their UID.
type podSet map[types.UID]*pod

// count counts the active pods of a revision.
func (s podSet) count(r *revisionState) (n int) {
	for _, p := range s {
		if p.rev == r && p.active() {
			n++
		}
	}
	return n
}

// timeChangesState reports whether the state of a pod's replica may change by time alone.
func (p *pod) timeChangesState(now time.Time) bool {
	return p.unscheduled != "" && now.Sub(p.unscheduledAt) >= unschedulable || p.ready && p.reported == nil
}

func (p *pod) spawned() bool {
	if p.reported != nil {
		return p.reported.State != functions.Downloading ||
			slices.ContainsFunc(p.reported.Phases, func(s functions.Span) bool { return s.Phase == functions.PhaseSpawn })
	}
	return p.running && p.rev != nil && !p.rev.shim
}

func (s *State) SetPod(k *corev1.Pod) {
	p, hurry, ask := s.recordPod(k)
	if ask {
		s.probes.add(probe{uid: p.uid, ip: p.ip})
	}
	if hurry {
		s.o.Writer.ForceDelete(p.namespace, p.name, p.uid)
	}
	s.notifyRevision(p)
}

// recordPod records a pod. hurry: it may be deleted at once; ask: it is to be probed.
func (s *State) recordPod(k *corev1.Pod) (p *pod, hurry, ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = s.bindings.pods[k.UID]
	if p == nil {
		p = &pod{uid: k.UID, namespace: k.Namespace, name: k.Name, created: k.CreationTimestamp.Time}
		if r := k.Labels[serving.RevisionLabelKey]; r != "" {
			p.revisionName = functions.Name{Team: k.Namespace, Name: r}
		}
		s.bindings.pods[k.UID] = p
	}
	p.rev = s.revisions[p.revisionName]
	before := p.node
	was := *p
	p.update(k, s.o.Now())
	if p.terminating && !was.terminating && p.replica != nil && !p.replica.ending {
		// Deleted by others: its Deployment creates another.
		p.replica.rev.lost = append(p.replica.rev.lost, s.o.Now())
	}
	switch {
	case p.ended && p.replica != nil && (p.terminating || p.replica.ending):
		s.bindings.unbind(p)
	case p.replica != nil && p.node != before:
		s.bindings.move(p.replica)
	default:
		s.bindings.bind(p)
	}
	if w := p.replica; w != nil {
		s.due.markNode(w.node)
		if p.terminating && !was.terminating {
			s.due.scales[w.rev.name] = true // its Deployment may grow again
		}
	} else {
		s.due.markNode(p.node)
	}
	hurry = p.mayForceDelete()
	if p.rev != nil && !p.rev.shim && p.running && p.ip != "" && !p.probing && !p.terminating {
		p.probing, ask = true, true
	}
	return p, hurry, ask
}

// mayForceDelete reports, once per pod, that it is terminating and its engine has exited,
// so only Knative's proxy still runs in it, which would hold its GPUs for half a minute.
func (p *pod) mayForceDelete() bool {
	r := p.rev
	if p.replica != nil {
		r = p.replica.rev // the revision may be dropped while its pods still exist
	}
	if r == nil || !p.terminating || p.forceDeleted || p.ended || !r.shim {
		return false
	}
	p.forceDeleted = p.shimGone || p.reported != nil && p.reported.State == functions.Unloaded
	return p.forceDeleted
}

func (s *State) DropPod(uid types.UID) {
	s.mu.Lock()
	p := s.bindings.pods[uid]
	if p == nil {
		s.mu.Unlock()
		return
	}
	if p.replica != nil && !p.replica.ending && !p.terminating {
		p.replica.rev.lost = append(p.replica.rev.lost, s.o.Now())
	}
	delete(s.bindings.pods, uid)
	s.bindings.unbind(p)
	s.due.markNode(p.node)
	s.mu.Unlock()
	s.notifyRevision(p)
}

func (s *State) notifyRevision(p *pod) {
	if p.revisionName.Name != "" && s.o.Changed != nil {
		s.o.Changed(p.revisionName)
	}
}

// onProbeSuccess records that a pod without the shim answers.
func (s *State) onProbeSuccess(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.bindings.pods[uid]; p != nil {
		p.probed = true
		if p.replica != nil {
			s.due.markNode(p.replica.node)
		}
	}
}

// needsProbe reports whether a pod is still to be probed.
func (s *State) needsProbe(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.bindings.pods[uid]
	return p != nil && p.active() && !p.probed
}

// OnPodStatus records the status of pods as their shims report it through the node's
// loader; whole: the list is complete for the node.
func (s *State) OnPodStatus(node string, whole bool, pods []controlstream.Pod) {
	now := s.o.Now()
	var over []*pod
	defer func() {
		for _, p := range over {
			s.o.Writer.ForceDelete(p.namespace, p.name, p.uid)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range pods {
		report := &pods[i]
		p := s.bindings.pods[types.UID(report.UID)]
		if p == nil || p.node != "" && p.node != node {
			continue // not observed yet; the shim reports again in 2 s
		}
		if report.Gone {
			p.shimGone = true
		} else {
			p.reported, p.shimGone = &report.Status, false
			if p.startedAt.IsZero() {
				p.startedAt = now
			}
			if p.node == "" { // the loader knows the node before the API server reports it
				p.node = node
				if p.replica != nil {
					s.bindings.move(p.replica)
				}
			}
			s.bindings.bind(p)
		}
		if p.replica != nil {
			s.due.markNode(p.replica.node)
		}
		if p.mayForceDelete() {
			over = append(over, p)
		}
	}
	if n := s.nodes[node]; n != nil {
		n.connected = true
	}
}

// update copies what is needed of a pod.
func (p *pod) update(k *corev1.Pod, now time.Time) {
	p.node = cmp.Or(k.Spec.NodeName, p.node)
	p.ip = cmp.Or(k.Status.PodIP, p.ip)
	p.terminating = k.DeletionTimestamp != nil
	p.ended = k.Status.Phase == corev1.PodSucceeded || k.Status.Phase == corev1.PodFailed
	p.requests = PodResources(&k.Spec)
	p.ready, p.running, p.problem = false, false, ""
	unscheduled := ""
	for _, c := range k.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			p.ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			(c.Reason == corev1.PodReasonUnschedulable || c.Reason == corev1.PodReasonSchedulingGated):
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

// PodResources is what a pod requests of its node: the sum of its containers, at least
// each init container's request, plus the overhead.
func PodResources(spec *corev1.PodSpec) functions.Resources {
	of := func(c *corev1.Container) functions.Resources {
		return functions.Resources{
			GPUs:   int(Requested(c.Resources.Limits.Name(knative.GPU, resource.DecimalSI))),
			Memory: functions.Bytes(Requested(c.Resources.Requests.Memory())),
			CPU:    functions.CPU(RequestedMilli(c.Resources.Requests.Cpu())),
		}
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
	sum.Memory += functions.Bytes(Requested(spec.Overhead.Memory()))
	sum.CPU += functions.CPU(RequestedMilli(spec.Overhead.Cpu()))
	return sum
}

// maxRequest bounds a request, so that no sum of a pod's containers overflows: a negative
// one would add room to its node.
const maxRequest = 1 << 50

func Requested(q *resource.Quantity) int64 { return team.Bounded(q, maxRequest) }

func RequestedMilli(q *resource.Quantity) int64 {
	if team.Bounded(q, maxRequest/1000) == maxRequest/1000 {
		return maxRequest
	}
	return max(q.MilliValue(), 0)
}

// waitingProblems maps reasons of a waiting container that do not pass by themselves.
var waitingProblems = map[string]string{
	"ErrImagePull":               "its image cannot be pulled (a private registry wants spec.pod.imagePullSecrets)",
	"ImagePullBackOff":           "its image cannot be pulled (a private registry wants spec.pod.imagePullSecrets)",
	"ImageInspectError":          "its image cannot be read",
	"RegistryUnavailable":        "the registry of its image does not answer",
	"SignatureValidationFailed":  "its image is not signed as the node wants",
	"InvalidImageName":           "its image has no valid name",
	"ErrImageNeverPull":          "its image is not on the node",
	"CreateContainerConfigError": "its container cannot be created",
	"CreateContainerError":       "its container cannot be created",
	"RunContainerError":          "its container cannot be started",
	"StartError":                 "its container cannot be started",
	"PostStartHookError":         "its container cannot be started",
	"CrashLoopBackOff":           "its container keeps crashing",
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
				p.problem += ": " + LastLine(w.Message)
			}
		}
		return
	}
	if t != nil && t.ExitCode != 0 {
		p.problem = exitReason(t)
	}
}

// exitReason is why a container ended: what killed it, or its termination message. Knative has
// the last lines of the log stand for a message, and they do not know what killed the container.
func exitReason(t *corev1.ContainerStateTerminated) string {
	why := fmt.Sprintf("its container ended with exit code %d", t.ExitCode)
	switch code := t.ExitCode; {
	case t.Reason == "OOMKilled":
		why = "its container ran out of memory (raise resources.memory)"
	case code > 128 && code < 160:
		why += fmt.Sprintf(": signal %d, %s", code-128, syscall.Signal(code-128))
	case t.Message != "":
		return LastLine(t.Message)
	case code == 126 || code == 127:
		why += ": its program cannot be run, or is not in the image"
	}
	if t.Message != "" {
		why += "; its last line: " + LastLine(t.Message)
	}
	return why
}

// LastLine is the last line of a message, bounded.
func LastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return functions.Shorten(s, 500)
}
