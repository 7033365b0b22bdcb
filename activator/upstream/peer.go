package upstream

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
)

// maxMarked bounds the addresses that are remembered for unsolicited bytes.
const maxMarked = 1024

// minAnswers is how many answers of a peer must have come before peer.rest is known.
const minAnswers = 8

// peer is what a Client knows of an address. Client.mu guards it.
type peer struct {
	conns map[*conn]struct{} // all that are open
	idle  []*conn            // newest last

	single bool // unsolicited bytes came: each connection serves one request
	first  bool // of those not yet reported, one was the first
	found  int  // unsolicited bytes that are not yet reported

	answers int
	// rest is how long after its last request a connection may be used again: as long as
	// the slowest of about the last 64 answers took to begin. Were the last answer a stray
	// one, the true one comes in that time and must not reach another request.
	rest time.Duration
}

// peerAt returns the peer at an address. mu is held.
func (c *Client) peerAt(addr string) *peer {
	p := c.peers[addr]
	if p == nil {
		p = &peer{conns: map[*conn]struct{}{}}
		c.peers[addr] = p
	}
	return p
}

// take removes the newest idle connection that may be used again. If none may, it removes
// the newest and rested is false: that is to be closed, since engines that have a thread
// per connection must not get more of them. nil is none. An agent, which is reached over
// TLS, is a server of ours, see Options.Framed.
func (p *peer) take(secure, framed bool) (k *conn, rested bool) {
	var now time.Time
	if !secure && !framed && p.answers >= minAnswers && len(p.idle) > 0 {
		now = time.Now()
	}
	at := -1
	for i := len(p.idle) - 1; i >= 0 && !rested; i-- {
		k := p.idle[i]
		if k.secure != secure {
			continue
		}
		rested = now.IsZero() || k.socket == nil || now.Sub(k.sentAt) >= p.rest
		if rested || at < 0 {
			at = i
		}
	}
	if at < 0 {
		return nil, false
	}
	k = p.idle[at]
	p.idle = slices.Delete(p.idle, at, at+1)
	return k, rested
}

// observe accounts for an answer that began so long after its request.
func (p *peer) observe(firstByte time.Duration) {
	p.answers++
	p.rest = max(firstByte, p.rest-p.rest/64)
}

// forget drops a connection that is closed.
func (c *Client) forget(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[k.addr]
	if p == nil {
		return
	}
	delete(p.conns, k)
	if len(p.conns) == 0 && !p.single {
		delete(c.peers, k.addr)
	}
}

// markUnsolicited counts bytes of an address that no request asked for, closes its idle
// connections, and lets each later one serve one request.
func (c *Client) markUnsolicited(addr string) {
	c.mu.Lock()
	p := c.peerAt(addr)
	if !p.single {
		p.single, p.first = true, true
		c.marked++
		c.dropMark(addr)
	}
	if p.found++; p.found == 1 {
		c.unreported.Add(1)
	}
	idle := p.idle
	p.idle = nil
	c.count -= len(idle)
	c.mu.Unlock()
	for _, k := range idle {
		k.closeConn()
	}
}

// dropMark forgets the mark of some address other than addr where there are too many. mu
// is held.
func (c *Client) dropMark(addr string) {
	if c.marked <= maxMarked {
		return
	}
	for other, p := range c.peers {
		if other != addr && p.single && len(p.conns) == 0 {
			c.removeMark(other, p)
			return
		}
	}
}

// unmark forgets the mark of an address where no engine listens any more: the next one
// there is another.
func (c *Client) unmark(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[addr]; p != nil && p.single && len(p.conns) == 0 {
		c.removeMark(addr, p)
	}
}

// removeMark drops a marked peer without connections. mu is held.
func (c *Client) removeMark(addr string, p *peer) {
	if p.found > 0 {
		c.unreported.Add(-1)
	}
	c.marked--
	delete(c.peers, addr)
}

// UnsolicitedHeader is in an answer that a server of ours passes on from an engine: how
// often that one was found to write bytes that no request asked for, and " first" behind
// it where these were the first.
const UnsolicitedHeader = "thaw-unsolicited"

// UnsolicitedValue is the value of UnsolicitedHeader; "" where nothing was found.
func (r *Response) UnsolicitedValue() string {
	switch {
	case r.Unsolicited == 0:
		return ""
	case r.FirstUnsolicited:
		return strconv.Itoa(r.Unsolicited) + " first"
	}
	return strconv.Itoa(r.Unsolicited)
}

// takeUnsolicited adds what the server at the other end reports of its engine.
func (r *Response) takeUnsolicited() {
	v := r.Header(UnsolicitedHeader)
	if v == "" {
		return
	}
	count, first, _ := strings.Cut(v, " ")
	if n, ok := http1.ParseLength([]byte(count), 6); ok {
		r.Unsolicited += int(n)
		r.FirstUnsolicited = r.FirstUnsolicited || first == "first"
	}
}

// report moves what was found at an address into an answer of it.
func (c *Client) report(addr string, res *Response) {
	if c.unreported.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[addr]; p != nil && p.found > 0 {
		res.Unsolicited, res.FirstUnsolicited = p.found, p.first
		p.found, p.first = 0, false
		c.unreported.Add(-1)
	}
}
