package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// Scale is the scale of a revision, for the status of its PodAutoscaler.
func (t *leaderTerm) Scale(namespace, revision string) (s autoscale.Scale, ok bool) {
	name := functions.Name{Team: namespace, Name: revision}
	if !t.settled.Load() || !t.catalog.has(namespace, revision) {
		return autoscale.Scale{}, false
	}
	f, known := t.orchestrator.Function(name) // read before the counts, so that they include the turn's decision
	desired, actual, ready := t.cluster.ReplicaCounts(name)
	s = autoscale.Scale{Desired: int32(desired), Actual: int32(actual), Ready: int32(ready)}
	way := t.evictions.of(name)
	own := t.catalog.get(name)
	if own != nil && own.unusable && ready == 0 {
		s.Active, s.Reason, s.Message = corev1.ConditionFalse, autoscale.ReasonBadModel, own.problem
		return s, true
	}
	if own != nil && own.problem != "" {
		defer func() { s.Reason, s.Message = autoscale.ReasonBadModel, own.problem }()
	}
	switch {
	case ready > 0:
		s.Active = corev1.ConditionTrue
	case known && f.Failure != nil:
		s.Active, s.Reason, s.Message = corev1.ConditionFalse, "Failed", f.Failure.Reason
	case known && f.Blocked != nil:
		s.Active, s.Reason, s.Message = corev1.ConditionUnknown, camelCase(f.Blocked.Code), f.Blocked.Message
	case desired > 0:
		s.Active, s.Reason, s.Message = corev1.ConditionUnknown, autoscale.ReasonStarting, startMessage(f.State)
	case len(way) > 0 || known && t.dataPath.hasQueued(name) && !nodeChosen(&f):
		s.Active = corev1.ConditionUnknown
		gpus := 0
		if own != nil {
			gpus = own.model.Spec.Resources.GPUs
		}
		if s.Reason = "WaitingForGPUs"; gpus == 0 {
			s.Reason = "WaitingForRoom"
		}
		x, _ := t.orchestrator.Explain(explain.Place, name)
		s.Message = waitMessage(gpus, way, func(f functions.Name) string { return t.nameFor(namespace, f) }, x)
	case actual > 0:
		s.Active, s.Reason = corev1.ConditionFalse, autoscale.ReasonStopping
	default:
		s.Active, s.Reason = corev1.ConditionFalse, autoscale.ReasonNoTraffic
	}
	return s, true
}

func nodeChosen(f *snapshot.Snapshot) bool {
	return f.State != functions.Unloaded && (f.State != functions.Downloading || f.ColdStart == nil || f.ColdStart.Replica != "")
}

// startMessage describes the state of a start. It has no percentage, which would cause a
// write per change.
func startMessage(state functions.State) string {
	switch state {
	case functions.Downloading:
		return "a replica is on its way: its pod starts, its weights arrive"
	case functions.Loading:
		return "a replica is loading its model"
	}
	return "a replica is starting"
}

// camelCase turns a code such as no_room into a condition's reason.
func camelCase(code string) string {
	var b strings.Builder
	for _, w := range strings.FieldsFunc(code, func(r rune) bool { return r == '_' || r == ' ' }) {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return cmp.Or(b.String(), "Blocked")
}

// onEvent passes an event of the orchestrator to the revision's Service.
func (t *leaderTerm) onEvent(e functions.Event) {
	if t.autoscale == nil {
		return
	}
	name, err := functions.ParseName(e.Function, functions.DefaultTeam)
	if err != nil || e.Function == "" {
		return
	}
	event := func(reason, message string, warning bool) {
		t.autoscale.RecordNote(name.Team, name.Name, autoscale.Note{Reason: reason, Message: message, Warning: warning})
	}
	switch {
	case e.Kind == "ended":
		if to, ok := t.evictions.remove(e.Replica); ok {
			t.revisionChanged(to)
		}
	case e.Kind == "stop" && (e.Reason == "evicted" || e.Reason == "time_slice" || e.Reason == "share"):
		if to, err := functions.ParseName(e.For, functions.DefaultTeam); err == nil && e.For != "" {
			l := pendingEviction{evicted: name, beneficiary: to}
			if end := t.dataPath.demandOf(name).LastEnd; e.Reason == "evicted" && !end.IsZero() {
				l.idleFor = e.At.Sub(end)
			}
			t.evictions.add(e.Replica, l)
			t.revisionChanged(to)
		}
		beneficiary := "another model"
		if to, err := functions.ParseName(e.For, functions.DefaultTeam); err == nil {
			beneficiary = t.nameFor(name.Team, to)
		}
		event("Evicted", fmt.Sprintf("Its replica on %s makes way for %s: %s.", e.Node, beneficiary, e.Message), false)
	case e.Kind == "failed":
		event("ReplicaFailed", e.Message, true)
	}
	t.revisionChanged(name)
}

// nameFor is the name of a function in a text that a team reads: what other teams run is
// not for it to know.
func (t *leaderTerm) nameFor(team string, f functions.Name) string {
	if f.Team != team {
		return "a model of another team"
	}
	return t.public(f.String())
}

// pendingEvictions are replicas that are being evicted and have not ended yet.
type pendingEvictions struct {
	mu        sync.Mutex
	byReplica map[string]pendingEviction // guarded by mu; by replica
}

type pendingEviction struct {
	evicted, beneficiary functions.Name // the replica's revision, and the one that gets its room
	idleFor              time.Duration  // time since its last request; 0: unknown
}

func (e *pendingEvictions) add(replica string, x pendingEviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byReplica == nil {
		e.byReplica = map[string]pendingEviction{}
	}
	e.byReplica[replica] = x
}

// remove drops an ended replica and returns the revision that gets its room.
func (e *pendingEvictions) remove(replica string) (to functions.Name, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, ok := e.byReplica[replica]
	delete(e.byReplica, replica)
	return x.beneficiary, ok
}

// of lists the evictions in favour of a revision.
func (e *pendingEvictions) of(to functions.Name) (out []pendingEviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.byReplica {
		if x.beneficiary == to {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b pendingEviction) int { return cmp.Compare(a.evicted.String(), b.evicted.String()) })
	return out
}

// waitMessage describes what a revision without room waits for: the evicted Services, with
// the idle times of its own team's, or else why the planner refused each node.
func waitMessage(gpus int, way []pendingEviction, nameFor func(functions.Name) string, x functions.Explanation) string {
	what := "room on a node"
	switch {
	case gpus == 1:
		what = "a GPU"
	case gpus > 1:
		what = fmt.Sprintf("%d GPUs", gpus)
	}
	if len(way) == 0 {
		return "waiting for " + what + candidateProblems(x)
	}
	names := make([]string, len(way))
	for i, x := range way {
		names[i] = nameFor(x.evicted)
		switch {
		case x.evicted.Team != x.beneficiary.Team:
		case x.idleFor >= time.Minute:
			names[i] += fmt.Sprintf(", idle %.0f min", x.idleFor.Minutes())
		case x.idleFor > 0:
			names[i] += fmt.Sprintf(", idle %.0f s", x.idleFor.Seconds())
		}
	}
	return "waiting for " + what + "; evicting " + strings.Join(names, " and ")
}

// candidateProblems lists the planner's refusals, grouped by reason; "" if a node was
// chosen.
func candidateProblems(x functions.Explanation) string {
	if x.Chosen != "" {
		return ""
	}
	nodes := map[string][]string{}
	var whys []string
	for _, c := range x.Candidates {
		if c.Node == "" || c.Why == "" {
			continue
		}
		if nodes[c.Why] == nil {
			whys = append(whys, c.Why)
		}
		nodes[c.Why] = append(nodes[c.Why], c.Node)
	}
	for i, why := range whys {
		whys[i] = why + " (" + strings.Join(nodes[why], ", ") + ")"
	}
	if x.Others > 0 && len(whys) > 0 {
		whys = append(whys, fmt.Sprintf("%d more nodes", x.Others))
	}
	if len(whys) == 0 {
		return ""
	}
	return ": " + strings.Join(whys, "; ")
}
