package controlstream

import (
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
)

// grace is how long the demand of an activator outlives its connection.
const grace = 2 * time.Second

// Coordinator has what is left of the limits of teams: ratelimit.Coordinator. An error ends the link.
type Coordinator interface {
	Report(id string, first bool, c *ratelimit.UsageReports, now time.Time) error
	Disconnected(id string, now time.Time)
}

// HubOptions of a Hub. Token must be set: without one no peer is accepted. The
// functions are called in the order of one peer's messages, from any goroutine, and
// must not block.
type HubOptions struct {
	Token string // that peers show
	// Tokens are those that are taken now, in the place of Token; may be nil.
	Tokens func() []string
	// Leads, which may be nil (this one leads), says whether this controller leads,
	// and else the HOST:PORT of the one that does, "" if it is not known. Who dials
	// one that does not is sent there.
	Leads func() (leads bool, leader string)
	// Quiet hubs tell activators nothing before Open: a controller that has just
	// begun does not know yet what runs.
	Quiet bool

	Waker       activator.Waker                                                 // hears wakes, nudges and asks of all activators
	FirstToken  func(name functions.Name, coldStart string, took time.Duration) // may be nil
	Node        func(id string, hb functions.Heartbeat)                         // of a loader; may be nil
	Pods        func(node string, whole bool, pods []Pod)                       // of a loader; whole: there are no others; may be nil
	Joined      func(kind Kind, id string)                                      // before its first news; Tell reaches it; may be nil
	Left        func(kind Kind, id string)                                      // its connection is gone and no other took its place; may be nil
	Coordinator Coordinator                                                     // of the limits of teams; may be nil
	Applied     func()                                                          // an activator routes by another table now; may be nil
	Log         *slog.Logger                                                    // nil is silence
	Now         func() time.Time                                                // time.Now
}

// Hub is the controller's end of all links, and the data path of steer: what it
// is told goes to every activator, what they hold is added up. It starts no
// goroutine but those of its connections, which end with them.
type Hub struct {
	o HubOptions

	coordinating sync.Mutex // of what is said to Bank: a former link says nothing after the next has begun

	mu              sync.Mutex // of all that follows; never held while something is called or written
	open            bool
	closed          bool
	snapshots       map[functions.Name]*snapshot.Snapshot
	seq             uint64 // counts changes of pictures
	table           *Table
	keys            *Keys
	peers           map[Kind]map[string]*peer // connected, or an activator that is believed for a while
	demandChanged   []functions.Name          // demand has changed
	isDemandChanged map[functions.Name]bool
	ends            map[functions.Name]time.Time        // of the last request of each function, at any activator
	removed         map[functions.Name][]removedReplica // replicas that have left the routes
	conns           map[net.Conn]bool
	connections     sync.WaitGroup // the goroutines of conns
}

// removedReplica is a replica that is in no picture any more since seq: who has not heard
// of that may be giving it a request just now.
type removedReplica struct {
	id  string
	seq uint64
	at  time.Time
}

// peer is one link. All but its pipe is under the hub's mu.
type peer struct {
	kind   Kind
	id     string
	hub    *Hub
	pipe   *pipe
	signal chan struct{} // capacity 1: there is something to write
	gone   chan struct{} // closed by the reader when the connection has ended
	since  time.Time

	lost       time.Time // when the connection ended; zero while there is one
	demand     map[functions.Name]Demand
	appliedSeq uint64
	applied    uint64

	// What is still to be written.
	fullSync   bool
	dirty      []functions.Name
	isDirty    map[functions.Name]bool
	aborts     []string
	rateLimits *ratelimit.Allotments
	table      bool
	keys       bool
	nodePeers  *[]functions.Peer
	owners     *Owners
	prefetch   []functions.LoadRequest
	stops      []Stop
}

// NewHub makes a hub; it starts nothing.
func NewHub(o HubOptions) *Hub {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Hub{
		o: o, open: !o.Quiet,
		snapshots:       map[functions.Name]*snapshot.Snapshot{},
		peers:           map[Kind]map[string]*peer{KindActivator: {}, KindNode: {}},
		conns:           map[net.Conn]bool{},
		isDemandChanged: map[functions.Name]bool{},
		ends:            map[functions.Name]time.Time{},
		removed:         map[functions.Name][]removedReplica{},
	}
}

// Open lets a Quiet hub speak to activators.
func (h *Hub) Open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open {
		return
	}
	h.open = true
	h.activators((*peer).wake)
}

// Close ends every link and refuses new ones: this controller does not lead any
// more. It returns when all have ended.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for conn := range h.conns {
		conn.Close()
	}
	h.mu.Unlock()
	h.connections.Wait()
}

func (p *peer) wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// activators calls f on each that is connected; under mu.
func (h *Hub) activators(f func(*peer)) {
	for _, p := range h.peers[KindActivator] {
		if p.lost.IsZero() {
			f(p)
		}
	}
}

// Publish tells all activators new pictures of functions.
func (h *Hub) Publish(fs ...snapshot.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for i := range fs {
		f := fs[i]
		if h.snapshots[f.Name] == nil {
			h.markDemandChanged(f.Name) // demand may have come before the snapshot
		}
		h.noteRemovedReplicas(f.Name, h.snapshots[f.Name], &f)
		h.snapshots[f.Name] = &f
		h.activators(func(p *peer) { p.markDirty(f.Name) })
	}
	h.activators((*peer).wake)
}

// Remove takes functions out.
func (h *Hub) Remove(names ...functions.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for _, name := range names {
		if h.snapshots[name] == nil {
			continue
		}
		h.noteRemovedReplicas(name, h.snapshots[name], &snapshot.Snapshot{})
		delete(h.snapshots, name)
		delete(h.ends, name)
		h.activators(func(p *peer) { p.markDirty(name) })
	}
	h.activators((*peer).wake)
}

// noteRemovedReplicas notes which replicas leave the routes between two pictures; under mu.
func (h *Hub) noteRemovedReplicas(name functions.Name, before, f *snapshot.Snapshot) {
	list := slices.DeleteFunc(h.removed[name], func(l removedReplica) bool { return f.HasReplica(l.id) })
	if before != nil {
		for i := range before.Replicas {
			if id := before.Replicas[i].ID; !f.HasReplica(id) {
				list = append(list, removedReplica{id, h.seq, h.o.Now()})
			}
		}
	}
	if len(list) == 0 {
		delete(h.removed, name)
		return
	}
	h.removed[name] = list
}

// markDirty notes that the picture of a function is to be written; under mu.
func (p *peer) markDirty(name functions.Name) {
	if p.fullSync || p.isDirty[name] {
		return
	}
	p.isDirty[name] = true
	p.dirty = append(p.dirty, name)
}

// Cut ends, at all activators, what is in flight through the agent at this URL.
func (h *Hub) Cut(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.activators(func(p *peer) {
		if !slices.Contains(p.aborts, agent) {
			p.aborts = append(p.aborts, agent)
		}
		p.wake()
	})
}

// Grant tells an activator what it has of the limits of teams. What is told and not
// written yet is overtaken by what is told later of the same.
func (h *Hub) Grant(id string, g ratelimit.Allotments) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[KindActivator][id]
	if p == nil || !p.lost.IsZero() {
		return
	}
	if p.rateLimits == nil {
		p.rateLimits = &ratelimit.Allotments{}
	}
	p.rateLimits.Share = g.Share
	for _, one := range g.List {
		p.rateLimits.List = replaceByKey(p.rateLimits.List, one, func(x ratelimit.Allotment) ratelimit.Key { return ratelimit.Key{Team: x.Team, Kind: x.Kind} })
	}
	p.wake()
}

// SetTable tells all activators a new table of routes, which is not changed any
// more.
func (h *Hub) SetTable(t *Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.table = t
	h.activators(func(p *peer) { p.table = true; p.wake() })
}

// SetKeys tells all activators the keys, which are not changed any more.
func (h *Hub) SetKeys(k Keys) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = &k
	h.activators(func(p *peer) { p.keys = true; p.wake() })
}

// Applied is the oldest version of the table that an activator routes by, and how
// many are connected: 0, 0 when none is. One whose link has just ended routes on by
// what it has, and will be linked again: it counts for as long as its demand does.
func (h *Hub) Applied() (version uint64, activators int) {
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

// Activators are the names of those that are connected, in order.
func (h *Hub) Activators() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []string{}
	h.activators(func(p *peer) { out = append(out, p.id) })
	slices.Sort(out)
	return out
}

// Tell tells a node's loader; it reports whether that is connected. What is told
// and not written yet is overtaken by what is told later of the same.
func (h *Hub) Tell(node string, d Update) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[KindNode][node]
	if p == nil || !p.lost.IsZero() {
		return false
	}
	if d.Peers != nil {
		p.nodePeers = d.Peers
	}
	if d.Owners != nil {
		p.owners = d.Owners
	}
	for _, l := range d.Prefetch {
		p.prefetch = replaceByKey(p.prefetch, l, func(x functions.LoadRequest) string { return x.ID })
	}
	for _, s := range d.Stop {
		p.stops = replaceByKey(p.stops, s, func(x Stop) string { return x.UID })
	}
	p.wake()
	return true
}

// replaceByKey puts v in the place of the one with its key, or at the end.
func replaceByKey[T any, K comparable](list []T, v T, key func(T) K) []T {
	k := key(v)
	if i := slices.IndexFunc(list, func(x T) bool { return key(x) == k }); i >= 0 {
		list[i] = v
		return list
	}
	return append(list, v)
}
