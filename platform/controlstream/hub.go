package controlstream

import (
	"cmp"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// grace is how long an activator's demand still counts after its connection ends.
const grace = 2 * time.Second

// Coordinator divides the teams' limits: ratelimit.Coordinator. An error ends a connection.
type Coordinator interface {
	Report(id string, first bool, c *ratelimit.UsageReports, now time.Time) error
	OnDisconnect(id string, now time.Time)
}

// HubOptions configure a Hub. Tokens must be set. The functions are called in the order of a
// peer's messages, from any goroutine, and must not block.
type HubOptions struct {
	Tokens func() []string // that peers send; "" is none
	// Leads reports whether this controller leads, and if not the leader's HOST:PORT, ""
	// if unknown. Peers are redirected there. nil: this controller leads.
	Leads func() (leads bool, leader string)
	// Quiet hubs send nothing to activators before StartSending: a controller that has just started
	// does not know yet which replicas run.
	Quiet bool

	// gets the sums of demand, and the wakes, demand hints and health reports of all activators
	Waker      activator.Waker
	FirstToken func(name functions.Name, coldStart string, took time.Duration) // may be nil
	Node       func(id string, hb functions.Heartbeat)                         // a loader's heartbeat; may be nil
	Pods       func(node string, whole bool, pods []Pod)                       // a loader's pods; whole: it has no others; may be nil
	// called before a peer's first report; SendToNode reaches it already; may be nil
	Joined      func(kind Kind, id string)
	Left        func(kind Kind, id string) // called when a peer's connection ended and no other replaced it; may be nil
	Coordinator Coordinator                // of the teams' limits; may be nil
	Applied     func()                     // called when an activator routes by another table; may be nil
	Log         *slog.Logger               // nil discards
	Now         func() time.Time           // default time.Now
}

// Hub is the controller's end of all control streams, and the orchestrator's data path: it
// sends updates to every activator and adds up their demand. Its only goroutines are those
// of its connections.
type Hub struct {
	o HubOptions

	coordinating sync.Mutex // orders calls of the Coordinator: a former connection makes none after its successor's first
	reporting    sync.Mutex // orders calls of Waker.Demand: no older sum comes after a newer

	mu            sync.Mutex // guards all fields below; never held during a call or a write
	open          bool
	closed        bool
	snapshots     map[functions.Name]*snapshot.Snapshot // as activators get them
	models        map[functions.Name]sentModel          // of snapshots
	modelBytes    map[string]int                        // of models, per team
	seq           uint64                                // counts changes of snapshots
	table         *Table
	keys          *Keys
	peers         map[Kind]map[string]*peer                  // connected, or an activator within its grace
	demandChanged newest.Map[functions.Name, functions.Name] // not reported yet
	ends          map[functions.Name]requestEnds             // at any activator
	removed       map[functions.Name][]removedReplica        // replicas that have left the routes
	lastRemoved   uint64                                     // the newest seq in removed
	prunedAt      time.Time
	streams       map[*stream]bool
	serving       sync.WaitGroup // handlers of streams
}

// removedReplica is a replica that is in no snapshot since seq. Activators that have not
// acknowledged seq may still send requests to it.
type removedReplica struct {
	id  string
	seq uint64
	at  time.Time
}

// peer is one stream of a peer. All but the stream is guarded by the hub's mu.
type peer struct {
	kind   Kind
	id     string
	hub    *Hub
	stream *stream
	signal newest.Signal // there is an update to write

	lost       time.Time // when the stream ended; zero while it is open
	demand     map[functions.Name]activator.Demand
	appliedSeq uint64
	applied    uint64
	pending    pending
}

// pending is the update that is not written yet, the newest of each subject.
type pending struct {
	fullSync   bool
	dirty      newest.Map[functions.Name, struct{}]
	aborts     newest.Map[string, string]
	share      *float64
	allotments newest.Map[ratelimit.Key, ratelimit.Allotment]
	table      bool
	keys       bool
	nodePeers  *[]functions.Peer
	owners     *Owners
	prefetch   newest.Map[string, functions.LoadRequest]
	stops      newest.Map[string, Stop]
}

func (h *Hub) newPeer(kind Kind, id string, s *stream) *peer {
	return &peer{
		kind: kind, id: id, hub: h, stream: s, signal: newest.NewSignal(),
		demand: map[functions.Name]activator.Demand{}, pending: pending{fullSync: true, table: true, keys: true},
	}
}

// NewHub returns a Hub; it starts nothing.
func NewHub(o HubOptions) *Hub {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Hub{
		o: o, open: !o.Quiet,
		snapshots:  map[functions.Name]*snapshot.Snapshot{},
		peers:      map[Kind]map[string]*peer{KindActivator: {}, KindNode: {}},
		streams:    map[*stream]bool{},
		models:     map[functions.Name]sentModel{},
		modelBytes: map[string]int{},
		ends:       map[functions.Name]requestEnds{},
		removed:    map[functions.Name][]removedReplica{},
	}
}

// StartSending lets a Quiet hub send to activators.
func (h *Hub) StartSending() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return
	}
	h.open = true
	h.activators(func(p *peer) { p.signal.Set() })
}

// Close ends every connection and refuses new ones, because this controller no longer
// leads. It returns when all have ended.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for s := range h.streams {
		s.end(net.ErrClosed)
	}
	h.mu.Unlock()
	h.serving.Wait()
}

// activators calls f for each connected activator; mu must be held.
func (h *Hub) activators(f func(*peer)) {
	for _, p := range h.peers[KindActivator] {
		if p.lost.IsZero() {
			f(p)
		}
	}
}

// Publish sends new snapshots of functions to all activators, and reports the demand for those
// that lose a replica by them.
func (h *Hub) Publish(fs ...snapshot.Snapshot) {
	defer h.reportDemand()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prune()
	h.seq++
	for i := range fs {
		f := fs[i]
		if h.snapshots[f.Name] == nil {
			h.demandChanged.Put(f.Name, f.Name) // demand may have been reported before the snapshot
		}
		h.noteRemovedReplicas(f.Name, h.snapshots[f.Name], &f)
		f.Model = h.modelToSend(f.Name, f.Model)
		h.snapshots[f.Name] = &f
		h.activators(func(p *peer) { p.markDirty(f.Name) })
	}
	h.activators(func(p *peer) { p.signal.Set() })
}

// Remove removes functions at all activators.
func (h *Hub) Remove(names ...functions.Name) {
	defer h.reportDemand()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for _, name := range names {
		if h.snapshots[name] == nil {
			continue
		}
		h.noteRemovedReplicas(name, h.snapshots[name], &snapshot.Snapshot{})
		delete(h.snapshots, name)
		h.dropModel(name)
		delete(h.ends, name)
		h.demandChanged.Put(name, name)
		h.activators(func(p *peer) { p.markDirty(name) })
	}
	h.activators(func(p *peer) { p.signal.Set() })
}

// noteRemovedReplicas records replicas that are in before and not in f; mu must be held.
func (h *Hub) noteRemovedReplicas(name functions.Name, before, f *snapshot.Snapshot) {
	list := slices.DeleteFunc(h.removed[name], func(l removedReplica) bool { return f.HasReplica(l.id) })
	if len(list) < len(h.removed[name]) {
		h.demandChanged.Put(name, name)
	}
	if before != nil {
		for i := range before.Replicas {
			if id := before.Replicas[i].ID; !f.HasReplica(id) {
				list = append(list, removedReplica{id, h.seq, h.o.Now()})
				h.lastRemoved = h.seq
				h.demandChanged.Put(name, name)
			}
		}
	}
	if len(list) == 0 {
		delete(h.removed, name)
		return
	}
	h.removed[name] = list
}

// markDirty queues a function's snapshot for writing; mu must be held.
func (p *peer) markDirty(name functions.Name) {
	if !p.pending.fullSync {
		p.pending.dirty.Put(name, struct{}{})
	}
}

// AbortThrough aborts, at all activators, the requests that go through the agent at this URL.
func (h *Hub) AbortThrough(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.activators(func(p *peer) {
		p.pending.aborts.Put(agent, agent)
		p.signal.Set()
	})
}

// Grant sends an activator its allotments. A later allotment replaces one of the same key
// that was not written yet.
func (h *Hub) Grant(id string, g ratelimit.Allotments) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[KindActivator][id]
	if p == nil || !p.lost.IsZero() {
		return
	}
	p.pending.share = &g.Share
	for _, a := range g.List {
		p.pending.allotments.Put(ratelimit.Key{Team: a.Team, Kind: a.Kind}, a)
	}
	p.signal.Set()
}

// SetTable sends all activators a new routing table. t must not change afterwards.
func (h *Hub) SetTable(t *Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.table = t
	h.activators(func(p *peer) { p.pending.table = true; p.signal.Set() })
}

// SetKeys sends all activators the keys. k must not change afterwards.
func (h *Hub) SetKeys(k Keys) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = h.keysToSend(k)
	h.activators(func(p *peer) { p.pending.keys = true; p.signal.Set() })
}

// OldestApplied is the oldest table version that an activator routes by, and the number of
// connected activators; 0, 0 if there are none. A disconnected activator counts for the
// version until its grace ends: it still routes, and connects again.
func (h *Hub) OldestApplied() (version uint64, activators int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, oldest := h.o.Now(), uint64(math.MaxUint64)
	for _, p := range h.peers[KindActivator] {
		switch {
		case p.lost.IsZero():
			activators++
		case now.Sub(p.lost) >= grace:
			continue
		}
		oldest = min(oldest, p.applied)
	}
	if activators == 0 {
		return 0, 0
	}
	return oldest, activators
}

// Activators returns the sorted IDs of the connected activators.
func (h *Hub) Activators() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []string{}
	h.activators(func(p *peer) { out = append(out, p.id) })
	slices.Sort(out)
	return out
}

// SendToNode sends an update to a node's loader; it returns false if that is not connected. A
// later value replaces one of the same key that was not written yet.
func (h *Hub) SendToNode(node string, d Update) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[KindNode][node]
	if p == nil || !p.lost.IsZero() {
		return false
	}
	if d.Peers != nil {
		p.pending.nodePeers = d.Peers
	}
	if d.Owners != nil {
		p.pending.owners = d.Owners
	}
	for _, l := range d.Prefetch {
		p.pending.prefetch.Put(l.ID, l)
	}
	for _, s := range d.Stop {
		p.pending.stops.Put(s.UID, s)
	}
	p.signal.Set()
	return true
}

func (h *Hub) Samples(yield func(metric string, value float64, labels ...string)) {
	h.mu.Lock()
	there, away := map[Kind]int{}, 0
	for kind, of := range h.peers {
		for _, p := range of {
			if p.lost.IsZero() {
				there[kind]++
			} else {
				away++
			}
		}
	}
	h.mu.Unlock()
	for _, kind := range []Kind{KindActivator, KindNode} {
		yield("thaw_control_streams", float64(there[kind]), string(kind))
	}
	yield("thaw_activators_in_grace", float64(away))
}
