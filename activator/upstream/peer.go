package upstream

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
	"github.com/thaw-dev/thaw/functions"
)

// maxMarked bounds the addresses that are remembered for unsolicited bytes.
const maxMarked = 1024

// minAnswers is how many answers of a peer must have come before peer.rest is known.
const minAnswers = 8

// minRest is the shortest rest that counts: no engine answers sooner, only servers for
// which a new connection would be most of the cost.
const minRest = time.Millisecond

// A connection is opened beside resting ones only where the rest is no longer than
// maxBesideRest. Where the first answer of one has not begun after firstPatience times the
// rest, and minPatience, none is opened for minFull, and for twice as long each time.
const (
	maxBesideRest = 100 * time.Millisecond
	firstPatience = 8
	minPatience   = 100 * time.Millisecond
	minFull       = 10 * time.Second
)

// peer is what a Client knows of an address. Client.mu guards it.
type peer struct {
	conns map[*conn]struct{} // all that are open
	idle  []*conn            // newest last

	lastByte atomic.Int64 // when the last byte came, in unix nanoseconds; see Traffic

	single bool // unsolicited bytes came: each connection serves one request
	first  bool // of those not yet reported, one was the first
	found  int  // unsolicited bytes that are not yet reported

	answers int
	// rest is how long after its last request a connection may be used again: as long as
	// the slowest of about the last 64 answers took to begin. Were the last answer a stray
	// one, the true one comes in that time and must not reach another request.
	rest time.Duration

	starved   int           // connections that wait for long for their first answer, see watch
	fullUntil time.Time     // none is opened beside resting ones until then
	fullFor   time.Duration // how long that was
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
// per connection must not get more of them. nil is none, or that a new one may be opened
// beside those that rest. An agent, which is reached over TLS, is a server of ours, see
// Options.Framed.
func (p *peer) take(secure, framed bool) (k *conn, rested bool) {
	var now time.Time
	if !secure && !framed && p.answers >= minAnswers && len(p.idle) > 0 {
		now = time.Now()
	}
	at := -1
	for i := len(p.idle) - 1; i >= 0 && !rested; i-- {
		k := p.idle[i]
		if (k.transport.under != nil) != secure {
			continue
		}
		rested = now.IsZero() || k.transport.socket == nil || p.rest < minRest || now.Sub(k.sentAt) >= p.rest
		if rested || at < 0 {
			at = i
		}
	}
	if at < 0 || !rested && p.grows(now) {
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

// grows reports whether a connection may be opened beside those that rest, so that they
// rest while it serves: where an engine answers so soon that opening connections is much of
// the cost, and no more of them rest than are in use. One that is used by one request at a
// time thus gets none, it may serve a single connection.
func (p *peer) grows(now time.Time) bool {
	busy := len(p.conns) - len(p.idle)
	return len(p.idle) <= busy && p.rest <= maxBesideRest && !now.Before(p.fullUntil)
}

// watch ends the idle connections if the first answer on k does not begin, and those in use
// when their exchanges end: an engine with a fixed number of threads, each for one
// connection, serves k only when another ends. done is called once it has begun or failed.
func (c *Client) watch(k *conn) (done func()) {
	c.mu.Lock()
	p := c.peerAt(k.addr)
	wait := max(minPatience, firstPatience*p.rest)
	c.mu.Unlock()
	late, over := false, false // mu guards them
	timer := time.AfterFunc(wait, func() {
		c.mu.Lock()
		if over {
			c.mu.Unlock()
			return
		}
		late = true
		p.starved++
		p.fullFor = max(minFull, 2*p.fullFor)
		p.fullUntil = time.Now().Add(p.fullFor)
		idle := c.takeIdle(p)
		c.mu.Unlock()
		closeAll(idle)
	})
	return func() {
		if timer.Stop() {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		over = true
		if late {
			p.starved--
		}
	}
}

// takeIdle removes the idle connections of a peer. mu is held.
func (c *Client) takeIdle(p *peer) []*conn {
	idle := p.idle
	p.idle = nil
	c.count -= len(idle)
	return idle
}

func closeAll(l []*conn) {
	for _, k := range l {
		k.closeConn()
	}
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
	idle := c.takeIdle(p)
	c.mu.Unlock()
	closeAll(idle)
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

// Traffic reports the exchanges with an endpoint's address that are under way, and when it last
// sent a byte.
func (c *Client) Traffic(endpoint string) functions.Traffic {
	addr, _ := SplitEndpoint(endpoint)
	c.mu.Lock()
	p := c.peers[addr]
	if p == nil {
		c.mu.Unlock()
		return functions.Traffic{}
	}
	all := slices.Collect(maps.Keys(p.conns))
	c.mu.Unlock()
	t := functions.Traffic{LastByte: unixTime(p.lastByte.Load())}
	for _, k := range all {
		sent := k.exchange.begunAt.Load()
		if sent == 0 {
			continue
		}
		t.InFlight++
		if at := unixTime(sent); !k.exchange.bodyBegan.Load() && (t.Waiting.IsZero() || at.Before(t.Waiting)) {
			t.Waiting = at
		}
	}
	return t
}

// unixTime is a time from its unix nanoseconds; 0 is the zero time.
func unixTime(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
