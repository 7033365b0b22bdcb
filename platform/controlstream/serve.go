package controlstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// ServeHTTP accepts control streams at Endpoint.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tokens := []string{h.o.Token}
	if h.o.Tokens != nil {
		tokens = h.o.Tokens()
	}
	if !acceptUpgrade(w, r, tokens) {
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
		h.connections.Add(1)
	}
	h.mu.Unlock()
	if closed {
		http.Error(w, "this controller does not lead any more", http.StatusServiceUnavailable)
		return
	}
	defer h.connections.Done()
	p := hijack(w)
	if p == nil {
		return
	}
	defer p.conn.Close()
	if h.track(p.conn) {
		defer h.untrack(p.conn)
		h.serve(p, p.conn.RemoteAddr(), r.TLS)
	}
}

// track records a connection for Close; false if the hub is closed already.
func (h *Hub) track(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.conns[conn] = true
	}
	return !h.closed
}

func (h *Hub) untrack(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
}

var errNoHello = errors.New("its first message does not say who it is")

// serve runs one connection, from its first message to its end.
func (h *Hub) serve(c *pipe, from net.Addr, shown *tls.ConnectionState) {
	var first reportFrame
	if err := c.read(&first); err != nil {
		h.o.Log.Warn("a link ended before its peer said who it is", "from", from, "error", err)
		return
	}
	hello := first.Report.Hello
	if hello == nil || hello.ID == "" || len(hello.ID) > 253 || hello.Kind != KindActivator && hello.Kind != KindNode {
		h.o.Log.Warn("a link is refused", "from", from, "error", errNoHello)
		return
	}
	if shown != nil && mtls.Name(shown) != NameOf(hello.Kind) {
		h.o.Log.Warn("a link is refused", "from", from, "peer", hello.ID, "error", fmt.Sprintf("it says that it is one of kind %q, and its certificate is that of %q", hello.Kind, mtls.Name(shown)))
		return
	}
	p := &peer{
		kind: hello.Kind, id: hello.ID, hub: h, pipe: c,
		signal: make(chan struct{}, 1), gone: make(chan struct{}), since: h.o.Now(),
		demand: map[functions.Name]Demand{}, isDirty: map[functions.Name]bool{}, fullSync: true,
	}
	first.FullSync = true
	u, err := first.unpack(h.o.Now())
	if err == nil {
		err = h.addPeer(p)
	}
	if err == nil {
		if err = h.absorb(p, &first, u); err != nil {
			h.removePeer(p)
		}
	}
	if err != nil {
		h.o.Log.Warn("a link is refused", "from", from, "peer", hello.ID, "error", err)
		return
	}
	log := h.o.Log.With("kind", string(p.kind), "peer", p.id)
	log.Info("linked", "from", from, "version", hello.Version)
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := p.writeUpdates(); err != nil && !isClosed(err) {
			log.Warn("a link does not take what it is told", "error", err)
		}
		c.conn.Close()
	})
	err = p.readReports()
	close(p.gone)
	c.conn.Close()
	writer.Wait()
	h.removePeer(p)
	if isClosed(err) {
		log.Info("a link has ended")
		return
	}
	log.Warn("a link has ended", "error", err)
}

// isClosed reports whether an error is only the end of a connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled)
}

// addPeer makes p the connection of its peer. A former connection of the same ID is closed,
// and p's demand replaces its demand.
func (h *Hub) addPeer(p *peer) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return net.ErrClosed
	}
	before := h.peers[p.kind][p.id]
	h.peers[p.kind][p.id] = p
	if before != nil {
		for name := range before.demand {
			h.markDemandChanged(name)
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
	return nil
}

func (h *Hub) removePeer(p *peer) {
	h.mu.Lock()
	mine := h.peers[p.kind][p.id] == p
	if mine {
		p.lost = h.o.Now()
		if p.kind != KindActivator {
			delete(h.peers[p.kind], p.id)
		}
	}
	h.mu.Unlock()
	if p.kind == KindActivator && h.o.Coordinator != nil {
		h.coordinating.Lock()
		if h.isCurrent(p) { // else a newer connection is the current one
			h.o.Coordinator.Disconnected(p.id, h.o.Now())
		}
		h.coordinating.Unlock()
	}
	if mine && h.o.Left != nil {
		h.o.Left(p.kind, p.id)
	}
}

func (p *peer) readReports() error {
	for {
		var f reportFrame
		if err := p.pipe.read(&f); err != nil {
			return err
		}
		if err := p.hub.onReport(p, &f); err != nil {
			return err
		}
	}
}

// onReport applies a report of a peer.
func (h *Hub) onReport(p *peer, f *reportFrame) error {
	u, err := f.unpack(h.o.Now())
	if err != nil {
		return err
	}
	return h.absorb(p, f, u)
}

func (h *Hub) absorb(p *peer, f *reportFrame, u Report) error {
	if p.kind == KindNode {
		if u.Node != nil && h.o.Node != nil {
			h.o.Node(p.id, *u.Node)
		}
		if (f.FullSync || len(u.Pods) > 0) && h.o.Pods != nil {
			h.o.Pods(p.id, f.FullSync, u.Pods)
		}
		return nil
	}
	h.mu.Lock()
	applied := p.applied
	if h.peers[p.kind][p.id] == p {
		h.applyReport(p, f, u)
	}
	changed := p.applied != applied
	h.mu.Unlock()
	if changed && h.o.Applied != nil {
		h.o.Applied()
	}
	if w := h.o.Waker; w != nil { // after the demand, which the Waker reads
		for _, x := range u.Wakes {
			w.Wake(x.Name, x.Team)
		}
		for _, name := range u.DemandHints {
			w.Nudge(name)
		}
		for _, a := range u.HealthReports {
			w.ReportFailure(a.Name, a.Replica, a.Problem)
		}
	}
	if h.o.FirstToken != nil {
		for _, x := range u.FirstTokens {
			h.o.FirstToken(x.Name, x.ColdStart, time.Duration(x.Seconds*float64(time.Second)))
		}
	}
	if h.o.Coordinator == nil || u.RateLimits == nil && u.Hello == nil {
		return nil
	}
	h.coordinating.Lock()
	defer h.coordinating.Unlock()
	if !h.isCurrent(p) {
		return nil
	}
	return h.o.Coordinator.Report(p.id, u.Hello != nil, u.RateLimits, h.o.Now())
}

// isCurrent reports whether p is still the connection of its peer.
func (h *Hub) isCurrent(p *peer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peers[p.kind][p.id] == p
}

// writeUpdates writes updates as they come, until the connection ends.
func (p *peer) writeUpdates() error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	known := models{}
	for {
		d, seq, any := p.nextUpdate()
		if any {
			if err := p.pipe.write(d.pack(seq, known, p.hub.o.Now())); err != nil {
				return err
			}
		}
		select {
		case <-p.gone:
			return nil
		case <-p.signal:
		case <-ping.C:
			if err := p.pipe.write(nil); err != nil {
				return err
			}
		}
	}
}

// nextUpdate takes the pending update; any is false if there is none.
func (p *peer) nextUpdate() (d Update, seq uint64, any bool) {
	h := p.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.kind == KindActivator && !h.open {
		return d, 0, false
	}
	d = Update{FullSync: p.fullSync, AbortAgent: p.aborts, Peers: p.nodePeers, Prefetch: p.prefetch, Stop: p.stops, Owners: p.owners}
	any = p.fullSync || len(p.dirty)+len(p.aborts)+len(p.prefetch)+len(p.stops) > 0 || p.nodePeers != nil || p.owners != nil
	if p.kind == KindActivator {
		if p.table && h.table != nil {
			d.Table, any = h.table, true
		}
		if p.keys && h.keys != nil {
			d.Keys, any = h.keys, true
		}
		if p.rateLimits != nil {
			d.RateLimits, any = p.rateLimits, true
		}
		if p.fullSync {
			d.Functions = make([]snapshot.Snapshot, 0, len(h.snapshots))
			for _, f := range h.snapshots {
				d.Functions = append(d.Functions, *f)
			}
		}
		for _, name := range p.dirty {
			if f := h.snapshots[name]; f != nil {
				d.Functions = append(d.Functions, *f)
			} else {
				d.Removed = append(d.Removed, name)
			}
		}
	}
	p.fullSync, p.table, p.keys, p.rateLimits = false, false, false, nil
	p.dirty, p.aborts, p.nodePeers, p.prefetch, p.stops, p.owners = nil, nil, nil, nil, nil, nil
	clear(p.isDirty)
	return d, h.seq, any
}

// Peer describes a connection, for status pages.
type Peer struct {
	Kind  Kind
	ID    string
	Since time.Time
}

// Peers lists the connections in order.
func (h *Hub) Peers() []Peer {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Peer
	for _, of := range h.peers {
		for _, p := range of {
			if p.lost.IsZero() {
				out = append(out, Peer{p.kind, p.id, p.since})
			}
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return out
}
