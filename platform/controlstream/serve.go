package controlstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// ServeHTTP accepts control streams at Endpoint. The server must be prepared by Configure.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := acceptStream(w, r, h.o.Tokens())
	if s == nil {
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
	if !h.track(s) {
		http.Error(w, "this controller does not lead any more", http.StatusServiceUnavailable)
		return
	}
	defer h.untrack(s)
	defer s.end(net.ErrClosed)
	w.Header().Set("Content-Type", protocol)
	if s.send(nil) == nil {
		h.serve(s, r.RemoteAddr, r.TLS)
	}
}

// track records a stream for Close; false if the hub is closed already.
func (h *Hub) track(s *stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.streams[s] = true
		h.serving.Add(1)
	}
	return !h.closed
}

func (h *Hub) untrack(s *stream) {
	h.mu.Lock()
	delete(h.streams, s)
	h.mu.Unlock()
	h.serving.Done()
}

var errNoHello = errors.New("its first message has no valid hello")

// serve runs one stream, from its first message to its end.
func (h *Hub) serve(s *stream, from string, shown *tls.ConnectionState) {
	var first reportFrame
	if err := s.read(&first); err != nil {
		h.o.Log.Warn("a control stream ended before its first message", "from", from, "error", err)
		return
	}
	hello := first.Report.Hello
	if hello == nil || hello.ID == "" || len(hello.ID) > 253 || hello.Kind != KindActivator && hello.Kind != KindNode {
		h.o.Log.Warn("a control stream is refused", "from", from, "error", errNoHello)
		return
	}
	if shown != nil && mtls.Name(shown) != NameOf(hello.Kind) {
		h.o.Log.Warn("a control stream is refused", "from", from, "peer", hello.ID, "error",
			fmt.Sprintf("its kind is %q, and its certificate is for %q", hello.Kind, mtls.Name(shown)))
		return
	}
	p := h.newPeer(hello.Kind, hello.ID, s)
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
		h.o.Log.Warn("a control stream is refused", "from", from, "peer", hello.ID, "error", err)
		return
	}
	log := h.o.Log.With("kind", string(p.kind), "peer", p.id)
	log.Info("control stream opened", "from", from, "version", hello.Version)
	var writer sync.WaitGroup
	writer.Go(func() { s.end(p.writeUpdates()) })
	s.end(p.readReports())
	writer.Wait()
	h.removePeer(p)
	if isClosed(s.cause) {
		log.Info("a control stream has ended")
		return
	}
	log.Warn("a control stream has ended", "error", s.cause)
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
			h.demandChanged.Put(name, name)
		}
		if before.lost.IsZero() {
			before.stream.end(net.ErrClosed)
		}
	}
	if p.kind == KindActivator {
		h.markRemoved(0, h.seq)
	}
	p.signal.Set()
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
		if p.kind == KindActivator {
			h.markRemoved(p.appliedSeq, h.seq)
			time.AfterFunc(grace, h.dropLostActivators)
		} else {
			delete(h.peers[p.kind], p.id)
		}
	}
	h.mu.Unlock()
	h.reportDemand()
	if p.kind == KindActivator && h.o.Coordinator != nil {
		h.coordinating.Lock()
		if h.isCurrent(p) { // else a newer connection is the current one
			h.o.Coordinator.OnDisconnect(p.id, h.o.Now())
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
		if err := p.stream.read(&f); err != nil {
			return err
		}
		if err := p.hub.onReport(p, &f); err != nil {
			return err
		}
	}
}

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
	h.reportDemand()
	if changed && h.o.Applied != nil {
		h.o.Applied()
	}
	if w := h.o.Waker; w != nil { // after the demand
		for _, x := range u.Wakes {
			w.Wake(x.Name)
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

func (h *Hub) isCurrent(p *peer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peers[p.kind][p.id] == p
}

// writeUpdates writes updates as they come, until the stream ends.
func (p *peer) writeUpdates() error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	known := models{}
	for {
		if d, seq, any := p.nextUpdate(); any {
			parts := d.split()
			for i := range parts {
				f := parts[i].pack(seq, known, p.hub.o.Now())
				f.More = i < len(parts)-1
				if err := p.stream.write(f); err != nil {
					return err
				}
			}
		}
		select {
		case <-p.stream.ended:
			return nil
		case <-p.signal:
		case <-ping.C:
			if err := p.stream.write(&updateFrame{Ping: true}); err != nil {
				return err
			}
		}
	}
}

// nextUpdate takes the pending update; any is false if there is none.
func (p *peer) nextUpdate() (d Update, seq uint64, any bool) {
	h, waiting := p.hub, &p.pending
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.kind == KindActivator && !h.open {
		return d, 0, false
	}
	d = Update{FullSync: waiting.fullSync, AbortAgent: waiting.aborts.Values(), Peers: waiting.nodePeers, Prefetch: waiting.prefetch.Values(),
		Stop: waiting.stops.Values(), Owners: waiting.owners}
	any = waiting.fullSync || len(d.AbortAgent)+len(d.Prefetch)+len(d.Stop)+waiting.dirty.Len() > 0 || waiting.nodePeers != nil ||
		waiting.owners != nil
	if p.kind == KindActivator {
		if waiting.table && h.table != nil {
			d.Table, any = h.table, true
		}
		if waiting.keys && h.keys != nil {
			d.Keys, any = h.keys, true
		}
		if waiting.share != nil {
			d.RateLimits, any = &ratelimit.Allotments{Share: *waiting.share, List: waiting.allotments.Values()}, true
		}
		if waiting.fullSync {
			d.Functions = make([]snapshot.Snapshot, 0, len(h.snapshots))
			for _, f := range h.snapshots {
				d.Functions = append(d.Functions, *f)
			}
		}
		for _, e := range waiting.dirty.Entries() {
			if f := h.snapshots[e.Key]; f != nil {
				d.Functions = append(d.Functions, *f)
			} else {
				d.Removed = append(d.Removed, e.Key)
			}
		}
	}
	*waiting = pending{}
	return d, h.seq, any
}
