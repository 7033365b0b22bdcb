package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// Hands are what the fleet does to the cluster. Calls are bounded by ctx and may
// be made concurrently.
type Hands interface {
	// Scale sets how many pods the Deployment that a revision scales by has.
	Scale(ctx context.Context, revision functions.Name, deployment string, replicas int) error
	// Least makes a pod the first to go when its Deployment is scaled down.
	Least(ctx context.Context, namespace, pod string) error
	// Hurry has a pod that is terminating, and whose engine has ended, forgotten.
	Hurry(ctx context.Context, namespace, pod string, uid types.UID) error
}

// fleet is the nodes of the cluster as steer commands them, and the pods as its
// replicas. It is told what informers and loaders see, and turns that into
// heartbeats; it is told by steer to load and unload, and turns that into scales
// of Deployments. One mutex holds all of it; nothing is called under it.
//
// Steer counts replicas, Kubernetes pods. A replica that is wanted is one more
// pod of its revision, whichever that will be; the first pod that comes and is
// nobody's is bound to it. A pod that nobody wanted (one that was there before
// this controller, or that replaces one that was evicted) becomes a replica of
// its own name, which steer adopts.
type fleet struct {
	o fleetOptions

	mu    sync.Mutex
	nodes map[string]*node
	pods  map[types.UID]*pod
	revs  map[functions.Name]*rev
	wants map[string]*want
	dirty map[string]bool // nodes of which there is news
	due   map[functions.Name]bool
	kinds map[string]*kind // of pods, by what they require of a node
	ring  chan struct{}    // there is something for Run
}

type fleetOptions struct {
	epoch int64
	life  string // of this controller, unlike any other's
	beat  func(functions.Heartbeat, orchestrator.Node)
	tell  func(node string, d controlstream.Down) bool
	hands Hands
	log   *slog.Logger
	now   func() time.Time
	probe func(p probe) // asks a pod without the shim whether it answers, until it does or is gone
	moved func(functions.Name)
	hurry func(namespace, pod string, uid types.UID) // has Hands.Hurry done, and returns at once
}

// probe is a pod that is to be asked whether it answers.
type probe struct {
	uid types.UID
	ip  string
}

// node is one node of Kubernetes.
type node struct {
	f    *fleet
	name string
	*facts
	heard  *functions.Heartbeat // from its loader; nil: there is none
	linked bool
	seq    uint64
	change uint64
	last   functions.Heartbeat
	sent   time.Time
}

// rev is one revision of our class.
type rev struct {
	name    functions.Name
	target  string
	shim    bool
	asked   int // replicas that were last written; -1 nothing was
	askedAt time.Time
	seen    int // spec.replicas as last seen; -1 it was not
	// Pods that went without our doing: they are replaced by their Deployment, or
	// their room is given back after a moment.
	gone   []time.Time
	first  time.Time // when its Deployment was first seen
	refuse string    // why its Deployment makes no pods
	since  time.Time
	mu     sync.Mutex // held while its scale is written
	kind   *kind
}

// kind is what revisions ask of a node beside room, and how many ask it.
type kind struct {
	requires string
	pod      functions.Pod
	revs     int
}

// want is one replica that steer asked for or adopted.
type want struct {
	id     string
	rev    *rev
	node   string
	gpus   []int
	pod    *pod
	since  time.Time
	ending bool
	served bool                    // it was READY in a picture
	said   functions.ReplicaStatus // as last told, for how long its state holds
	at     time.Time               // since when
}

// replacement is how long a pod that was taken away may take to come back under
// another name before its replica is given up.
const replacement = 2 * time.Second

// newFleet makes a fleet that knows nothing.
func newFleet(o fleetOptions) *fleet {
	return &fleet{
		o: o, nodes: map[string]*node{}, pods: map[types.UID]*pod{}, revs: map[functions.Name]*rev{}, wants: map[string]*want{},
		dirty: map[string]bool{}, due: map[functions.Name]bool{}, kinds: map[string]*kind{}, ring: make(chan struct{}, 1),
	}
}

// Run sends heartbeats and writes scales until ctx ends.
func (f *fleet) Run(ctx context.Context) error {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-f.ring:
		case <-t.C:
			all = true
		}
		f.push(all)
		for _, r := range f.behind(all) {
			writing.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
				defer cancel()
				if err := f.write(ctx, r); err != nil && ctx.Err() == nil {
					f.o.log.Warn("a scale was not written", "revision", r.name.String(), "error", err)
				}
			})
		}
	}
}

func (f *fleet) wake() {
	select {
	case f.ring <- struct{}{}:
	default:
	}
}

// touch notes that there is news of a node. Under mu.
func (f *fleet) touch(node string) {
	if node != "" {
		f.dirty[node] = true
	}
	f.wake()
}

// push sends the heartbeats that are due.
func (f *fleet) push(all bool) {
	type beat struct {
		hb functions.Heartbeat
		n  *node
	}
	var beats []beat
	now := f.o.now()
	f.mu.Lock()
	if all {
		f.settle(now)
	}
	var on *index
	for name, n := range f.nodes {
		if n.facts == nil || !n.ready || !f.dirty[name] && now.Sub(n.sent) < 2*time.Second {
			continue
		}
		if on == nil {
			on = f.index()
		}
		beats = append(beats, beat{f.heartbeat(n, on, now), n})
	}
	clear(f.dirty)
	f.mu.Unlock()
	for _, b := range beats {
		f.o.beat(b.hb, b.n)
	}
}

// settle gives up what did not come back in time. Under mu.
func (f *fleet) settle(now time.Time) {
	for _, r := range f.revs {
		before := len(r.gone)
		r.gone = slices.DeleteFunc(r.gone, func(t time.Time) bool { return now.Sub(t) >= replacement })
		if len(r.gone) != before {
			f.due[r.name] = true
		}
	}
	for _, w := range f.wants {
		if w.pod == nil || w.pod.late(now) {
			f.dirty[w.node] = true
		}
	}
}

// index is what is on each node, gathered once for all that are asked about.
type index struct {
	wants     map[string][]*want // by id
	strangers map[string]burden
}

// burden is what pods that are none of ours take of a node.
type burden struct {
	memory functions.Bytes
	cpu    functions.CPU
	gpus   int
	pods   int
}

// index of all there is. Under mu.
func (f *fleet) index() *index {
	x := &index{wants: map[string][]*want{}, strangers: map[string]burden{}}
	for _, id := range slices.Sorted(maps.Keys(f.wants)) {
		w := f.wants[id]
		x.wants[w.node] = append(x.wants[w.node], w)
	}
	for _, p := range f.pods {
		// Also one of ours that is nobody's replica any more, and still there.
		if p.want == nil && p.node != "" && !p.over {
			b := x.strangers[p.node]
			b.memory, b.cpu, b.gpus, b.pods = b.memory+p.memory, b.cpu+p.cpu, b.gpus+p.gpus, b.pods+1
			x.strangers[p.node] = b
		}
	}
	return x
}

// heartbeat is what a node says of itself. Under mu.
func (f *fleet) heartbeat(n *node, on *index, now time.Time) functions.Heartbeat {
	hb := functions.Heartbeat{
		AgentID: n.name, Epoch: f.o.epoch, State: functions.NodeIdle, Version: n.version, Life: f.o.life,
		Memory: functions.Capacity{Total: n.memory},
	}
	if n.heard != nil {
		hb.Store, hb.Cached, hb.PeerURL, hb.Borrows = n.heard.Store, n.heard.Cached, n.heard.PeerURL, n.heard.Borrows
	}
	held := map[int]bool{}
	for _, w := range on.wants[n.name] {
		st := f.status(w, now)
		if st.State == functions.Downloading || st.State == functions.Loading {
			hb.State = functions.NodeLoading
		}
		for _, g := range w.gpus {
			held[g] = true
		}
		hb.Models = append(hb.Models, st)
	}
	strangers := on.strangers[n.name]
	hb.Memory.Total = max(hb.Memory.Total-strangers.memory, 0)
	hb.GPUs = n.gpuList(held, strangers.gpus)
	// None is left: to say nothing would be that nobody counts.
	if n.cpu > 0 {
		hb.CPU = max(n.cpu-strangers.cpu, 1)
	}
	if n.pods > 0 {
		if hb.Pods = n.pods - strangers.pods; hb.Pods <= 0 {
			hb.Pods = -1
		}
	}
	if n.closed {
		// Nothing new is to come here: what is held is all there is.
		hb.GPUs = slices.DeleteFunc(hb.GPUs, func(g functions.GPU) bool { return !held[g.Index] })
		hb.Memory.Total, hb.CPU, hb.Pods = 1, 1, -1
	}
	for _, k := range slices.Sorted(maps.Keys(f.kinds)) {
		if f.kinds[k].pod.Refuses(n.labels, n.taints) != "" {
			hb.Bars = append(hb.Bars, k)
		}
	}
	if !sameBeat(&n.last, &hb) {
		n.change++
	}
	n.seq++
	n.sent, n.last = now, hb
	hb.Seq, hb.Change = n.seq, n.change
	return hb
}

// SetRevision adds a revision, or takes over what changed of it.
func (f *fleet) SetRevision(name functions.Name, target string, shim bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revs[name]
	if r == nil {
		r = &rev{name: name, asked: -1, seen: -1}
		f.revs[name] = r
		for _, p := range f.pods {
			if p.of == name && p.rev == nil {
				p.rev = r
				f.bind(p)
			}
		}
	}
	r.target, r.shim = target, shim
}

// Require takes in what the pods of a revision ask of a node.
func (f *fleet) Require(name functions.Name, pod functions.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, requires := f.revs[name], pod.Requires()
	if r == nil || r.kind != nil && r.kind.requires == requires {
		return
	}
	f.unkind(r)
	k := f.kinds[requires]
	if k == nil {
		k = &kind{requires: requires, pod: pod}
		f.kinds[requires] = k
		for node := range f.nodes {
			f.touch(node) // each has to say whether it may come there
		}
	}
	k.revs++
	r.kind = k
}

// unkind takes a revision out of its kind. Under mu.
func (f *fleet) unkind(r *rev) {
	if k := r.kind; k != nil {
		r.kind = nil
		if k.revs--; k.revs == 0 {
			delete(f.kinds, k.requires)
		}
	}
}

// DropRevision forgets one. Its pods are the garbage collector's; until they are
// gone they are somebody's on their node.
func (f *fleet) DropRevision(name functions.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revs[name]
	if r == nil {
		return
	}
	delete(f.revs, name)
	f.unkind(r)
	for id, w := range f.wants {
		if w.rev == r && w.pod == nil {
			delete(f.wants, id)
			f.touch(w.node)
		}
	}
}

// SetDeployment takes in how many pods a revision's Deployment is to have, and why
// it cannot make them.
func (f *fleet) SetDeployment(name functions.Name, replicas int, refuse string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revs[name]
	if r == nil {
		return
	}
	if refuse != r.refuse {
		r.refuse, r.since = refuse, f.o.now()
		for _, w := range f.wants {
			if w.rev == r {
				f.touch(w.node)
			}
		}
	}
	if r.first.IsZero() {
		r.first = f.o.now()
	}
	if r.seen != replicas {
		r.seen = replicas
		f.due[name] = true
		f.wake()
	}
}

// SetNode takes in what the API server says of a node.
func (f *fleet) SetNode(k *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[k.Name]
	if n == nil {
		n = &node{f: f, name: k.Name}
		f.nodes[k.Name] = n
	}
	was := n.facts
	n.facts = nodeFacts(k)
	if n.closed && (was == nil || !was.closed) {
		f.leave(n.name)
	}
	if was == nil || !was.equal(n.facts) {
		f.touch(k.Name)
	}
}

// leave gives up what was placed on a node and whose pod has not come there: it is
// wanted elsewhere now. Under mu. The pod, where there is one, is whose it will be.
func (f *fleet) leave(node string) {
	for id, w := range f.wants {
		if w.node == node && !w.ending && (w.pod == nil || w.pod.node == "") {
			if w.pod != nil {
				w.pod.want = nil
			}
			delete(f.wants, id)
			f.due[w.rev.name] = true
			f.touch(node)
		}
	}
}

// DropNode forgets one. Steer hears nothing of it any more, which says enough.
func (f *fleet) DropNode(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, name)
}

// Heard takes in what a node's loader says of the node. It reports whether who
// lends blocks has changed by it.
func (f *fleet) Heard(name string, hb functions.Heartbeat) (lends bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil {
		return false
	}
	was := ""
	if n.heard != nil && n.linked {
		was = n.heard.PeerURL
	}
	n.heard, n.linked = &hb, true
	f.touch(name)
	return was != hb.PeerURL
}

// Complete reports whether every pod of ours that runs with the shim has been heard
// of.
func (f *fleet) Complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		if p.rev != nil && p.rev.shim && p.running && !p.terminating && !p.over && p.said == nil {
			return false
		}
	}
	return true
}

// Linked takes in that a node's loader has come or gone.
func (f *fleet) Linked(name string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		n.linked = is
		f.touch(name)
	}
}

// Lenders are the nodes whose loaders are there, and the addresses at which they lend.
func (f *fleet) Lenders() (linked []string, lend []functions.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if !n.linked {
			continue
		}
		linked = append(linked, name)
		if n.heard != nil && n.heard.PeerURL != "" {
			lend = append(lend, functions.Peer{ID: name, URL: n.heard.PeerURL})
		}
	}
	slices.Sort(linked)
	slices.SortFunc(lend, func(a, b functions.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return linked, lend
}

// Hint is the node that the next pod of a revision was placed on.
func (f *fleet) Hint(name functions.Name) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var next *want
	for _, w := range f.wants {
		if w.rev.name == name && w.pod == nil && !w.ending && (next == nil || w.since.Before(next.since)) {
			next = w
		}
	}
	if next == nil {
		return "", false
	}
	return next.node, true
}

// Load is one more replica on this node. It is steer's.
func (n *node) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	f := n.f
	name := functions.Name{Team: req.Team, Name: req.Model}
	f.mu.Lock()
	r := f.revs[name]
	if r == nil {
		f.mu.Unlock()
		return functions.LoadReply{}, fmt.Errorf("revision %s is gone", name)
	}
	w := f.wants[req.ID]
	if w == nil {
		w = &want{id: req.ID, rev: r, node: n.name, gpus: req.GPUs, since: f.o.now()}
		f.wants[req.ID] = w
		f.bindFree(w)
	}
	f.touch(w.node)
	f.mu.Unlock()
	// The bytes can come while the pod is still looking for its node.
	if req.Spec.Source != "" {
		f.o.tell(n.name, controlstream.Down{Prefetch: []functions.LoadRequest{req}})
	}
	if err := f.scale(ctx, r); err != nil {
		f.mu.Lock()
		if w.pod == nil {
			delete(f.wants, req.ID)
		}
		f.mu.Unlock()
		return functions.LoadReply{}, err
	}
	return functions.LoadReply{ID: req.ID, State: functions.Downloading}, nil
}

// Unload is the end of a replica, which has been drained. It is steer's.
func (n *node) Unload(ctx context.Context, req functions.UnloadRequest) error {
	f := n.f
	f.mu.Lock()
	w := f.wants[req.ID]
	if w == nil {
		f.mu.Unlock()
		return nil
	}
	if req.Reason == functions.ReasonCalledOff && w.pod != nil && w.pod.spawned() {
		f.mu.Unlock()
		return nil // it has its process: it goes on
	}
	r, p := w.rev, w.pod
	first := !w.ending
	w.ending = true
	if p == nil {
		delete(f.wants, req.ID)
	} else if p.over {
		f.unbind(p)
	}
	others := 0
	for _, x := range f.pods {
		if x.rev == r && x != p && !x.terminating && !x.over {
			others++
		}
	}
	f.touch(w.node)
	var at, pod, namespace string
	if p != nil {
		at, pod, namespace = p.node, p.name, p.namespace
	}
	f.mu.Unlock()
	if p != nil && first {
		if r.shim {
			f.o.tell(at, controlstream.Down{Stop: []controlstream.Stop{{UID: string(p.uid), Seconds: req.DrainSeconds, Reason: req.Reason}}})
		}
		if others > 0 {
			if err := f.o.hands.Least(ctx, namespace, pod); err != nil {
				f.o.log.Warn("a pod was not made the first to go", "pod", namespace+"/"+pod, "error", err)
			}
		}
	}
	return f.scale(ctx, r)
}

// desired is how many pods each revision is to have; those that are absent none.
// Under mu.
func (f *fleet) desired() map[*rev]int {
	out := map[*rev]int{}
	for _, w := range f.wants {
		if !w.ending && (w.pod == nil || !w.pod.terminating) {
			out[w.rev]++
		}
	}
	now := f.o.now()
	for _, p := range f.pods {
		// One that nobody asked for here and that looks for its node: it is somebody's
		// once it has found one.
		if p.rev != nil && p.want == nil && p.node == "" && !p.terminating && !p.over && now.Sub(p.created) < unschedulable {
			out[p.rev]++
		}
	}
	for _, r := range f.revs {
		if k := len(r.gone); k > 0 {
			out[r] += k
		}
	}
	f.outgoing(out)
	return out
}

// outgoing has Deployments be small until the pods that are to end have begun to:
// Kubernetes looks at what is wanted now, not at what was in between, and one that is
// made smaller and larger again at once keeps the pod whose engine has ended, and
// makes no other. Under mu.
func (f *fleet) outgoing(desired map[*rev]int) {
	var leave map[*rev]int
	for _, w := range f.wants {
		if w.ending && w.pod != nil && !w.pod.terminating && !w.pod.over {
			if leave == nil {
				leave = map[*rev]int{}
			}
			leave[w.rev]++
		}
	}
	for r, k := range leave {
		have := 0
		for _, p := range f.pods {
			if p.rev == r && !p.terminating && !p.over {
				have++
			}
		}
		size := r.asked
		if size < 0 {
			size = r.seen
		}
		// Of those that are there, or are being made, so many are to go.
		desired[r] = min(desired[r], max(0, max(size, have)-k))
	}
}

// behind are the revisions whose Deployment is not as it should be.
func (f *fleet) behind(all bool) []*rev {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !all && len(f.due) == 0 {
		return nil
	}
	var out []*rev
	now, desired := f.o.now(), f.desired()
	look := func(r *rev) {
		if r == nil || r.target == "" || r.seen < 0 {
			return
		}
		want := desired[r]
		if r.asked < 0 && want < r.seen && now.Sub(r.first) < found {
			return // its pods may not have been made yet: somebody else has scaled it
		}
		switch {
		case r.asked >= 0 && r.asked != want: // whatever is seen may be what was before
		case r.seen != want && (r.asked < 0 || now.Sub(r.askedAt) > repeat):
		default:
			return
		}
		out = append(out, r)
	}
	if all {
		for _, r := range f.revs {
			look(r)
		}
	} else {
		for name := range f.due {
			look(f.revs[name])
		}
	}
	clear(f.due)
	return out
}

// scale is write for steer, which takes the word that somebody else leads for an
// order to send everybody away. Here it is a doubt that passes: either the lease is
// renewed after all, or the reign ends, with ctx, and who waits is held for the next.
func (f *fleet) scale(ctx context.Context, r *rev) error {
	for {
		err := f.write(ctx, r)
		if !errors.Is(err, functions.ErrStaleEpoch) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(doubt):
		}
	}
}

// doubt is how long who may not lead any more waits before it asks again.
const doubt = 200 * time.Millisecond

// write brings a revision's Deployment to what it should be.
func (f *fleet) write(ctx context.Context, r *rev) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.mu.Lock()
	want, target := f.desired()[r], r.target
	fresh := r.asked == want && f.o.now().Sub(r.askedAt) <= repeat
	if target == "" || fresh || r.seen == want && (r.asked == want || r.asked < 0) {
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	if err := f.o.hands.Scale(ctx, r.name, target, want); err != nil {
		return err
	}
	f.mu.Lock()
	r.asked, r.askedAt = want, f.o.now()
	f.mu.Unlock()
	return nil
}

// found is how long the size of a Deployment that somebody else gave it stands
// though its pods are not seen: a new revision's, or that of a controller that has
// just ended.
const found = 5 * time.Second

// repeat is when a scale that was written and is not seen is written again.
const repeat = 3 * time.Second

// Scale is how a revision stands.
func (f *fleet) Scale(name functions.Name) (desired, actual, ready int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revs[name]
	if r == nil {
		return 0, 0, 0
	}
	now := f.o.now()
	for _, w := range f.wants {
		if w.rev != r {
			continue
		}
		if !w.ending {
			desired++
		}
		if w.pod == nil || w.pod.terminating {
			continue
		}
		actual++
		if f.status(w, now).State == functions.Ready {
			ready++
		}
	}
	return desired, actual, ready
}

// Pod is where a replica runs, for its log; false where there is no such pod.
func (f *fleet) Pod(replica string) (namespace, name string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.wants[replica]; w != nil && w.pod != nil {
		return w.pod.namespace, w.pod.name, true
	}
	return "", "", false
}

// bind gives a pod to the replica that it is to be. Under mu.
func (f *fleet) bind(p *pod) {
	if p.rev == nil || p.want != nil || p.terminating || p.over {
		return
	}
	var to *want
	for _, w := range f.wants {
		if w.rev != p.rev || w.pod != nil || w.ending {
			continue
		}
		// One that was placed where the pod is; else the oldest.
		better := to == nil || w.node == p.node && to.node != p.node
		if !better && (w.node == p.node) == (to.node == p.node) {
			better = w.since.Before(to.since) || w.since.Equal(to.since) && w.id < to.id
		}
		if better {
			to = w
		}
	}
	if to == nil {
		if p.node == "" {
			return // nobody's yet: it is looked at again when it has a node
		}
		to = &want{id: label(p.name), rev: p.rev, node: p.node, since: f.o.now()}
		if f.wants[to.id] != nil {
			return
		}
		to.gpus = f.freeGPUs(p.node, p.gpus)
		f.wants[to.id] = to
		if len(p.rev.gone) > 0 {
			p.rev.gone = p.rev.gone[1:] // it came in the place of one that went
		}
		f.due[p.rev.name] = true
	}
	to.pod, p.want = p, to
	f.place(to)
	f.touch(to.node)
}

// bindFree gives a new want a pod that is there and nobody's. Under mu.
func (f *fleet) bindFree(w *want) {
	for _, p := range f.pods {
		if p.rev == w.rev && p.want == nil && !p.terminating && !p.over {
			w.pod, p.want = p, w
			f.place(w)
			return
		}
	}
}

// place moves a replica to the node on which its pod has come to be. Under mu.
// To steer it is another one: what it placed has vanished, and one that it finds
// there it adopts.
func (f *fleet) place(w *want) {
	if w.pod.node == "" || w.pod.node == w.node {
		return
	}
	delete(f.wants, w.id)
	f.touch(w.node)
	moved := *w
	moved.id, moved.node = label(w.pod.name), w.pod.node
	moved.gpus = f.freeGPUs(moved.node, max(len(w.gpus), w.pod.gpus))
	f.wants[moved.id] = &moved
	w.pod.want = &moved
	f.touch(moved.node)
}

// freeGPUs are k indices of a node that no replica has. Under mu.
func (f *fleet) freeGPUs(name string, k int) []int {
	held := map[int]bool{}
	for _, w := range f.wants {
		if w.node == name {
			for _, g := range w.gpus {
				held[g] = true
			}
		}
	}
	var out []int
	for i := 0; len(out) < k && i < 4096; i++ {
		if !held[i] {
			out = append(out, i)
		}
	}
	return out
}

// label makes a pod's name a DNS label, as ids of replicas are.
func label(name string) string {
	if len(name) > 63 {
		name = name[len(name)-63:]
	}
	return strings.TrimLeft(strings.ReplaceAll(name, ".", "-"), "-")
}
