package link

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/route"
	"github.com/thaw-dev/thaw/functions"
)

// grace is how long the demand of an activator outlives its connection.
const grace = 2 * time.Second

// HubOptions of a Hub. Token must be set: without one nobody is let in. What is
// called is called in the order of one peer's messages, from any goroutine, and
// must not block.
type HubOptions struct {
	Token string // that peers show
	// Leads, which may be nil (this one leads), says whether this controller leads,
	// and else the HOST:PORT of the one that does, "" if it is not known. Who dials
	// one that does not is sent there.
	Leads func() (leads bool, leader string)
	// Quiet hubs tell activators nothing before Open: a controller that has just
	// begun does not know yet what runs.
	Quiet bool

	Waker      activator.Waker                                                 // hears wakes, nudges and asks of all activators
	FirstToken func(name functions.Name, coldStart string, took time.Duration) // may be nil
	Node       func(id string, hb functions.Heartbeat)                         // of a loader; may be nil
	Pods       func(node string, whole bool, pods []Pod)                       // of a loader; whole: there are no others; may be nil
	Joined     func(kind Kind, id string)                                      // before its first news; Tell reaches it; may be nil
	Left       func(kind Kind, id string)                                      // its connection is gone and no other took its place; may be nil
	Log        *slog.Logger                                                    // nil is silence
	Now        func() time.Time                                                // time.Now
}

// Hub is the controller's end of all links, and the data path of steer: what it
// is told goes to every activator, what they hold is added up. It starts no
// goroutine but those of its connections, which end with them.
type Hub struct {
	o HubOptions

	mu       sync.Mutex // of all that follows; never held while something is called or written
	open     bool
	closed   bool
	pictures map[functions.Name]*route.Function
	seq      uint64 // counts changes of pictures
	table    *Table
	keys     *Keys
	peers    map[peerKey]*peer // connected, or an activator that is believed for a while
	stirred  []functions.Name  // demand has changed
	isStir   map[functions.Name]bool
	ends     map[functions.Name]time.Time // of the last request of each function, whoever had it
	left     map[functions.Name][]leaver  // replicas that have left the routes
	conns    map[net.Conn]bool
	links    sync.WaitGroup // the goroutines of conns
}

type peerKey struct {
	kind Kind
	id   string
}

// leaver is a replica that is in no picture any more since seq: who has not heard
// of that may be giving it a request just now.
type leaver struct {
	id  string
	seq uint64
	at  time.Time
}

// peer is one link. All but its pipe is under the hub's mu.
type peer struct {
	peerKey
	hub   *Hub
	pipe  *pipe
	ring  chan struct{} // capacity 1: there is something to write
	gone  chan struct{} // closed by the reader when the connection has ended
	since time.Time

	lost    time.Time // when the connection ended; zero while there is one
	demand  map[functions.Name]Demand
	heard   uint64
	applied uint64

	// What is still to be written.
	whole     bool
	dirty     []functions.Name
	isDirty   map[functions.Name]bool
	cuts      []string
	table     bool
	keys      bool
	nodePeers *[]functions.Peer
	prefetch  []functions.LoadRequest
	stops     []Stop
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
		pictures: map[functions.Name]*route.Function{},
		peers:    map[peerKey]*peer{},
		conns:    map[net.Conn]bool{},
		isStir:   map[functions.Name]bool{},
		ends:     map[functions.Name]time.Time{},
		left:     map[functions.Name][]leaver{},
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
	for _, p := range h.peers {
		p.wake()
	}
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
	h.links.Wait()
}

func (p *peer) wake() {
	select {
	case p.ring <- struct{}{}:
	default:
	}
}

// activators calls f on each that is connected; under mu.
func (h *Hub) activators(f func(*peer)) {
	for _, p := range h.peers {
		if p.kind == KindActivator && p.lost.IsZero() {
			f(p)
		}
	}
}

// Publish tells all activators new pictures of functions.
func (h *Hub) Publish(fs ...route.Function) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for i := range fs {
		f := fs[i]
		if h.pictures[f.Name] == nil {
			h.stir(f.Name) // what was said of it before anybody here knew it
		}
		h.depart(f.Name, h.pictures[f.Name], &f)
		h.pictures[f.Name] = &f
		h.activators(func(p *peer) { p.soil(f.Name) })
	}
	h.activators((*peer).wake)
}

// Remove takes functions out.
func (h *Hub) Remove(names ...functions.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for _, name := range names {
		if h.pictures[name] == nil {
			continue
		}
		h.depart(name, h.pictures[name], &route.Function{})
		delete(h.pictures, name)
		delete(h.ends, name)
		h.activators(func(p *peer) { p.soil(name) })
	}
	h.activators((*peer).wake)
}

// depart notes which replicas leave the routes between two pictures; under mu.
func (h *Hub) depart(name functions.Name, before, f *route.Function) {
	list := slices.DeleteFunc(h.left[name], func(l leaver) bool { return f.Has(l.id) })
	if before != nil {
		for i := range before.Replicas {
			if id := before.Replicas[i].ID; !f.Has(id) {
				list = append(list, leaver{id, h.seq, h.o.Now()})
			}
		}
	}
	if len(list) == 0 {
		delete(h.left, name)
		return
	}
	h.left[name] = list
}

// soil notes that the picture of a function is to be written; under mu.
func (p *peer) soil(name functions.Name) {
	if p.whole || p.isDirty[name] {
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
		if !slices.Contains(p.cuts, agent) {
			p.cuts = append(p.cuts, agent)
		}
		p.wake()
	})
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

// Applied is the oldest version of the table that a connected activator routes by,
// and how many are connected: 0, 0 when none is.
func (h *Hub) Applied() (version uint64, activators int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.activators(func(p *peer) {
		if activators == 0 || p.applied < version {
			version = p.applied
		}
		activators++
	})
	return version, activators
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
func (h *Hub) Tell(node string, d Down) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[peerKey{KindNode, node}]
	if p == nil || !p.lost.IsZero() {
		return false
	}
	if d.Peers != nil {
		p.nodePeers = d.Peers
	}
	for _, l := range d.Prefetch {
		p.prefetch = replace(p.prefetch, l, func(x functions.LoadRequest) string { return x.ID })
	}
	for _, s := range d.Stop {
		p.stops = replace(p.stops, s, func(x Stop) string { return x.UID })
	}
	p.wake()
	return true
}

// replace puts v in the place of the one with its key, or at the end.
func replace[T any](list []T, v T, key func(T) string) []T {
	k := key(v)
	if i := slices.IndexFunc(list, func(x T) bool { return key(x) == k }); i >= 0 {
		list[i] = v
		return list
	}
	return append(list, v)
}

// stir notes that the demand for a function has changed; under mu.
func (h *Hub) stir(name functions.Name) {
	if !h.isStir[name] {
		h.isStir[name] = true
		h.stirred = append(h.stirred, name)
	}
}

// expire forgets activators that have been away for too long: their requests were
// on their own connections; under mu.
func (h *Hub) expire(now time.Time) {
	for key, p := range h.peers {
		if p.lost.IsZero() || now.Sub(p.lost) < grace {
			continue
		}
		delete(h.peers, key)
		for name, d := range p.demand {
			if d.Active > 0 {
				h.ended(name, p.lost)
			}
			h.stir(name)
		}
	}
}

func (h *Hub) ended(name functions.Name, at time.Time) {
	if at.After(h.ends[name]) {
		h.ends[name] = at
	}
}

// sum is the demand for a function at all activators; under mu.
func (h *Hub) sum(name functions.Name) activator.Demand {
	out := activator.Demand{Name: name, LastEnd: h.ends[name]}
	for _, p := range h.peers {
		d, ok := p.demand[name]
		if !ok {
			continue
		}
		out.Active += d.Active
		out.Queued += d.Queued
		if !d.Oldest.IsZero() && (out.Oldest.IsZero() || d.Oldest.Before(out.Oldest)) {
			out.Oldest = d.Oldest
		}
		for team, n := range d.Teams {
			if out.Teams == nil {
				out.Teams = map[string]int{}
			}
			out.Teams[team] += n
		}
	}
	return out
}

// DemandOf is what is asked of one function.
func (h *Hub) DemandOf(name functions.Name) activator.Demand {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sum(name)
}

// Demand yields what is asked of the functions of which that, or the requests in
// flight at one of their replicas, may have changed since the last call; with all
// also of every other one that has requests. One at a time calls it.
func (h *Hub) Demand(all bool, yield func(activator.Demand) bool) {
	h.mu.Lock()
	h.expire(h.o.Now())
	names := h.stirred
	h.stirred = nil
	if all {
		for _, p := range h.peers {
			for name, d := range p.demand {
				if d.Active+d.Queued > 0 && !h.isStir[name] {
					h.isStir[name] = true // once, however many have some
					names = append(names, name)
				}
			}
		}
		h.prune()
	}
	clear(h.isStir)
	out := make([]activator.Demand, len(names))
	for i, name := range names {
		out[i] = h.sum(name)
	}
	h.mu.Unlock()
	for i := range out {
		if !yield(out[i]) { // the others are for the next call
			h.mu.Lock()
			for _, name := range names[i+1:] {
				h.stir(name)
			}
			h.mu.Unlock()
			return
		}
	}
}

// forgetAfter is how long a hub remembers what somebody who was cut off may not
// have heard: that a replica left the routes, and the end of the last request of a
// function that nobody here knows.
const forgetAfter = time.Hour

// prune forgets that; under mu.
func (h *Hub) prune() {
	now := h.o.Now()
	for name, list := range h.left {
		if list = slices.DeleteFunc(list, func(l leaver) bool { return now.Sub(l.at) > forgetAfter }); len(list) == 0 {
			delete(h.left, name)
		} else {
			h.left[name] = list
		}
	}
	for name, at := range h.ends {
		if h.pictures[name] == nil && now.Sub(at) > forgetAfter {
			delete(h.ends, name)
		}
	}
}

// InFlightOf is how many requests a replica has from all activators. One that has
// not said yet that it has heard of the replica's leaving the routes counts as
// one: it may be giving it a request just now.
func (h *Hub) InFlightOf(name functions.Name, replica string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.peers {
		n += p.demand[name].InFlight[replica]
	}
	for _, l := range h.left[name] {
		if l.id == replica {
			h.activators(func(p *peer) {
				if p.heard < l.seq {
					n++
				}
			})
		}
	}
	return n
}

// ServeHTTP takes links at Endpoint.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !admit(w, r, h.o.Token) {
		return
	}
	if h.o.Leads != nil {
		if leads, leader := h.o.Leads(); !leads {
			if leader != "" {
				w.Header().Set(leaderField, leader)
			}
			http.Error(w, "this controller does not lead", http.StatusMisdirectedRequest)
			return
		}
	}
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.links.Add(1)
	}
	h.mu.Unlock()
	if closed {
		http.Error(w, "this controller does not lead any more", http.StatusServiceUnavailable)
		return
	}
	defer h.links.Done()
	p := welcome(w)
	if p == nil {
		return
	}
	defer p.conn.Close()
	if h.keep(p.conn) {
		defer h.lose(p.conn)
		h.serve(p, p.conn.RemoteAddr())
	}
}

// keep notes a connection, for Close; false: that has come first.
func (h *Hub) keep(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.conns[conn] = true
	}
	return !h.closed
}

func (h *Hub) lose(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
}

var errNoHello = errors.New("its first message does not say who it is")

// serve is one link, from its first message to its end.
func (h *Hub) serve(c *pipe, from net.Addr) {
	var first upFrame
	if err := c.read(&first); err != nil {
		h.o.Log.Warn("a link ended before its peer said who it is", "from", from, "error", err)
		return
	}
	hello := first.News.Hello
	if hello == nil || hello.ID == "" || len(hello.ID) > 253 || hello.Kind != KindActivator && hello.Kind != KindNode {
		h.o.Log.Warn("a link is refused", "from", from, "error", errNoHello)
		return
	}
	p := &peer{
		peerKey: peerKey{hello.Kind, hello.ID}, hub: h, pipe: c,
		ring: make(chan struct{}, 1), gone: make(chan struct{}), since: h.o.Now(),
		demand: map[functions.Name]Demand{}, isDirty: map[functions.Name]bool{}, whole: true,
	}
	first.Whole = true
	u, err := first.unpack(h.o.Now())
	if err == nil {
		err = h.join(p, &first, u)
	}
	if err != nil {
		h.o.Log.Warn("a link is refused", "from", from, "peer", hello.ID, "error", err)
		return
	}
	log := h.o.Log.With("kind", string(p.kind), "peer", p.id)
	log.Info("linked", "from", from, "version", hello.Version)
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := p.writes(); err != nil && !ended(err) {
			log.Warn("a link does not take what it is told", "error", err)
		}
		c.conn.Close()
	})
	err = p.reads()
	close(p.gone)
	c.conn.Close()
	writer.Wait()
	h.leave(p)
	if ended(err) {
		log.Info("a link has ended")
		return
	}
	log.Warn("a link has ended", "error", err)
}

// ended reports whether an error is only the end of a connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled)
}

// join makes p the link of its peer. A former one is its former self: it ends, and
// what it asked for is what p asks for now.
func (h *Hub) join(p *peer, first *upFrame, u Up) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return net.ErrClosed
	}
	before := h.peers[p.peerKey]
	h.peers[p.peerKey] = p
	if before != nil {
		for name := range before.demand {
			h.stir(name)
		}
		if before.lost.IsZero() {
			before.pipe.conn.Close()
		}
	}
	p.table, p.keys = true, true
	p.wake()
	h.mu.Unlock()
	if h.o.Joined != nil {
		h.o.Joined(p.kind, p.id)
	}
	h.absorb(p, first, u)
	return nil
}

func (h *Hub) leave(p *peer) {
	h.mu.Lock()
	mine := h.peers[p.peerKey] == p
	if mine {
		p.lost = h.o.Now()
		if p.kind != KindActivator {
			delete(h.peers, p.peerKey)
		}
	}
	h.mu.Unlock()
	if mine && h.o.Left != nil {
		h.o.Left(p.kind, p.id)
	}
}

func (p *peer) reads() error {
	for {
		var f upFrame
		if err := p.pipe.read(&f); err != nil {
			return err
		}
		if err := p.hub.hear(p, &f); err != nil {
			return err
		}
	}
}

// hear takes in what a peer says.
func (h *Hub) hear(p *peer, f *upFrame) error {
	u, err := f.unpack(h.o.Now())
	if err == nil {
		h.absorb(p, f, u)
	}
	return err
}

func (h *Hub) absorb(p *peer, f *upFrame, u Up) {
	if p.kind == KindNode {
		if u.Node != nil && h.o.Node != nil {
			h.o.Node(p.id, *u.Node)
		}
		if (f.Whole || len(u.Pods) > 0) && h.o.Pods != nil {
			h.o.Pods(p.id, f.Whole, u.Pods)
		}
		return
	}
	h.mu.Lock()
	if h.peers[p.peerKey] == p {
		h.take(p, f, u)
	}
	h.mu.Unlock()
	if w := h.o.Waker; w != nil { // after the demand: who is woken looks at it
		for _, x := range u.Wakes {
			w.Wake(x.Name, x.Team)
		}
		for _, name := range u.Nudges {
			w.Nudge(name)
		}
		for _, a := range u.Asks {
			w.Ask(a.Name, a.Replica, a.Problem)
		}
	}
	if h.o.FirstToken != nil {
		for _, x := range u.Firsts {
			h.o.FirstToken(x.Name, x.ColdStart, time.Duration(x.Seconds*float64(time.Second)))
		}
	}
}

// take notes the demand of an activator; under mu.
func (h *Hub) take(p *peer, f *upFrame, u Up) {
	if f.Whole {
		named := make(map[functions.Name]bool, len(u.Demand))
		for _, d := range u.Demand {
			named[d.Name] = true
		}
		for name := range p.demand {
			if !named[name] {
				delete(p.demand, name)
				h.stir(name)
			}
		}
	}
	for _, d := range u.Demand {
		maps.DeleteFunc(d.InFlight, func(_ string, n int) bool { return n == 0 })
		if before, ok := p.demand[d.Name]; ok && f.Whole && d.like(&before) && !d.LastEnd.After(h.ends[d.Name].Add(jitter)) {
			continue // that all is as it was is no news
		}
		h.ended(d.Name, d.LastEnd)
		h.stir(d.Name)
		if d.Active+d.Queued+len(d.InFlight) == 0 {
			delete(p.demand, d.Name)
		} else {
			p.demand[d.Name] = d
		}
	}
	p.heard = max(p.heard, min(f.Heard, h.seq))
	if u.Applied > 0 {
		p.applied = u.Applied
	}
}

// jitter is by how much a moment may seem to move though it has not: what its
// message took to come.
const jitter = 20 * time.Millisecond

// like reports whether as much is asked as in another demand for the same.
func (d *Demand) like(o *Demand) bool {
	return d.Active == o.Active && d.Queued == o.Queued && d.Oldest.IsZero() == o.Oldest.IsZero() &&
		d.Oldest.Sub(o.Oldest).Abs() <= jitter && maps.Equal(d.InFlight, o.InFlight) && maps.Equal(d.Teams, o.Teams)
}

// writes tells the peer what there is to tell, as it comes, until its link ends.
func (p *peer) writes() error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	known := models{}
	for {
		d, seq, any := p.next()
		if any {
			if err := p.pipe.write(d.pack(seq, known, p.hub.o.Now())); err != nil {
				return err
			}
		}
		select {
		case <-p.gone:
			return nil
		case <-p.ring:
		case <-ping.C:
			if err := p.pipe.write(nil); err != nil {
				return err
			}
		}
	}
}

// next is what is to be written now.
func (p *peer) next() (d Down, seq uint64, any bool) {
	h := p.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.kind == KindActivator && !h.open {
		return d, 0, false
	}
	d = Down{Whole: p.whole, Cut: p.cuts, Peers: p.nodePeers, Prefetch: p.prefetch, Stop: p.stops}
	any = p.whole || len(p.dirty)+len(p.cuts)+len(p.prefetch)+len(p.stops) > 0 || p.nodePeers != nil
	if p.kind == KindActivator {
		if p.table && h.table != nil {
			d.Table, any = h.table, true
		}
		if p.keys && h.keys != nil {
			d.Keys, any = h.keys, true
		}
		if p.whole {
			d.Functions = make([]route.Function, 0, len(h.pictures))
			for _, f := range h.pictures {
				d.Functions = append(d.Functions, *f)
			}
		}
		for _, name := range p.dirty {
			if f := h.pictures[name]; f != nil {
				d.Functions = append(d.Functions, *f)
			} else {
				d.Removed = append(d.Removed, name)
			}
		}
	}
	p.whole, p.table, p.keys = false, false, false
	p.dirty, p.cuts, p.nodePeers, p.prefetch, p.stops = nil, nil, nil, nil, nil
	clear(p.isDirty)
	return d, h.seq, any
}

// Peer is a link as it may be shown.
type Peer struct {
	Kind  Kind
	ID    string
	Since time.Time
}

// Peers are the links there are, in order.
func (h *Hub) Peers() []Peer {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Peer
	for _, p := range h.peers {
		if p.lost.IsZero() {
			out = append(out, Peer{p.kind, p.id, p.since})
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return out
}
