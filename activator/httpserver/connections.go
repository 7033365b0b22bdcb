package httpserver

import (
	"cmp"
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Connections bounds the open connections of clients, all together and per address. Where
// one more comes, those that are idle longest end to make room; where none is idle, the
// new one is refused. Beyond the bound of an address a few may ask for the server's health.
// Several listeners may share it. Its methods may be called concurrently.
type Connections struct {
	max, perAddress int
	count           func(labels ...string)
	delay           time.Duration // for the client to read a refusal; closeDelay but in a test

	mu        sync.Mutex
	open      map[*Slot]struct{}
	addresses map[netip.Prefix]int
	beyond    map[netip.Prefix]int // of connections beyond the bound of their address
	refused   int                  // of those, how many wait for their client to read the refusal
	lingering []net.Conn           // were refused before a request came; oldest first
	reserve   *os.File             // is closed to accept one connection where no descriptor is free
}

// Slot is the place of one open connection.
type Slot struct {
	all     *Connections
	c       net.Conn
	address netip.Prefix
	place   place
	idle    atomic.Int64 // since when, in unix nanoseconds; 0: it serves a request; or slotEnded
}

// place is what a Slot counts as.
type place int

const (
	within place = iota // the bound of its address
	beyond              // it: the connection serves one request for the server's health
	told                // it, and its client was told so
)

// Bounds of what is beyond the bound of an address: connections of one that have not asked
// yet, and for how long.
const (
	maxBeyond     = 16
	beyondTimeout = time.Second
)

// maxRefused bounds the connections that are refused and still open, of each kind.
func (c *Connections) maxRefused() int { return max(64, min(c.max/8, 1024)) }

// slotEnded is the idle time of a connection that was ended to make room.
const slotEnded = -1

// NewConnections bounds connections to max, and those of one address to perAddress. count,
// which may be nil, counts what is dropped by its reason: address, total or descriptors
// where a new connection is refused, and idle where an old one ends.
func NewConnections(max, perAddress int, count func(labels ...string)) *Connections {
	c := unboundedConnections()
	c.max, c.perAddress = max, perAddress
	if count != nil {
		c.count = count
	}
	c.reserve, _ = os.Open(os.DevNull)
	return c
}

func unboundedConnections() *Connections {
	return &Connections{max: math.MaxInt, perAddress: math.MaxInt, count: func(...string) {}, delay: closeDelay, open: map[*Slot]struct{}{},
		addresses: map[netip.Prefix]int{}, beyond: map[netip.Prefix]int{}}
}

// Accept waits for the next connection that is within the bounds. Its Slot must be
// released when it is closed.
func (c *Connections) Accept(ln net.Listener) (net.Conn, *Slot, error) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			nc, err = c.acceptReserved(ln, err)
		}
		if err != nil {
			return nil, nil, err
		}
		if nc == nil {
			continue
		}
		s, reason := c.add(nc)
		if s != nil {
			return nc, s, nil
		}
		c.count(reason)
		if refuseConnection(nc, reason) {
			c.linger(nc)
		} else {
			nc.Close()
		}
	}
}

// linger closes a connection that was refused once its client could read that: closing it
// over what the client has sent would reset it.
func (c *Connections) linger(nc net.Conn) {
	nc.(*net.TCPConn).CloseWrite()
	c.mu.Lock()
	c.lingering = append(c.lingering, nc)
	c.endLingering(c.maxRefused())
	c.mu.Unlock()
	time.AfterFunc(c.delay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if i := slices.Index(c.lingering, nc); i >= 0 {
			c.endLingering(len(c.lingering) - i - 1)
		}
	})
}

// endLingering closes the oldest of the lingering connections but keep, and returns how many.
// mu must be held.
func (c *Connections) endLingering(keep int) int {
	n := max(0, len(c.lingering)-keep)
	for _, nc := range c.lingering[:n] {
		nc.Close()
	}
	c.lingering = slices.Delete(c.lingering, 0, n)
	return n
}

// acceptReserved accepts where no descriptor is free, by the reserved one: the connection
// is kept if an idle one could be ended for it, else closed (nil). The error is why where
// there is no reserved one left.
func (c *Connections) acceptReserved(ln net.Listener, why error) (net.Conn, error) {
	c.mu.Lock()
	ended := c.endLingering(0) + c.endIdle(netip.Prefix{})
	if c.reserve == nil {
		c.reserve, _ = os.Open(os.DevNull)
	}
	reserve := c.reserve
	c.reserve = nil
	c.mu.Unlock()
	if reserve == nil {
		return nil, why
	}
	reserve.Close()
	nc, err := ln.Accept()
	if err == nil && ended == 0 {
		c.count("descriptors")
		refuseConnection(nc, "descriptors")
		nc.Close()
		nc = nil
	}
	if f, err := os.Open(os.DevNull); err == nil {
		c.mu.Lock()
		c.reserve = f
		c.mu.Unlock()
	}
	return nc, err
}

// add counts a connection; nil and the reason if it is beyond a bound.
func (c *Connections) add(nc net.Conn) (_ *Slot, reason string) {
	s := &Slot{all: c, c: nc, address: prefixOf(nc.RemoteAddr())}
	s.SetIdle(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.addresses[s.address] >= c.perAddress && c.endIdle(s.address) == 0 {
		if s.place = beyond; c.beyond[s.address] >= maxBeyond {
			return nil, "address"
		}
		s.idle.Store(0) // it makes no room for others
	}
	if len(c.open) >= c.max && c.endIdle(netip.Prefix{}) == 0 {
		return nil, "total"
	}
	c.open[s] = struct{}{}
	c.counts(s)[s.address]++
	return s, ""
}

// counts is where a Slot is counted by its address; one that was told is not.
func (c *Connections) counts(s *Slot) map[netip.Prefix]int {
	if s.place == beyond {
		return c.beyond
	}
	return c.addresses
}

// refuse counts the refusal of a connection beyond the bound, whose place another may take.
// It reports whether it may wait for its client to read that.
func (s *Slot) refuse() bool {
	c := s.all
	c.count("address")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused >= c.maxRefused() {
		return false
	}
	s.remove()
	c.open[s] = struct{}{}
	s.place = told
	c.refused++
	return true
}

// endIdle ends the sixteenth of the idle connections, at least one, that are idle longest:
// of an address, or of all where it is invalid. It returns their number. One that got a
// request in the meantime is passed over; on one that is ended no request begins any more.
// mu must be held.
func (c *Connections) endIdle(of netip.Prefix) int {
	type idle struct {
		s     *Slot
		since int64
	}
	var all []idle
	for s := range c.open {
		if since := s.idle.Load(); since != 0 && (!of.IsValid() || s.address == of) {
			all = append(all, idle{s, since})
		}
	}
	slices.SortFunc(all, func(a, b idle) int { return cmp.Compare(a.since, b.since) })
	ended, most := 0, (len(all)+15)/16
	for _, x := range all {
		if ended < most && x.s.idle.CompareAndSwap(x.since, slotEnded) {
			x.s.remove()
			withoutTLS(x.s.c).Close() // the Close of TLS waits for a client that does not read
			c.count("idle")
			ended++
		}
	}
	return ended
}

// withoutTLS is the connection below c, or c.
func withoutTLS(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

// SetIdle notes that the connection has no request, or has one. It returns false where the
// connection was ended to make room: then no request may begin on it.
func (s *Slot) SetIdle(idle bool) bool {
	if s.place != within {
		return true
	}
	var since int64
	if idle {
		since = time.Now().UnixNano()
	}
	for {
		old := s.idle.Load()
		if old == slotEnded {
			return false
		}
		if s.idle.CompareAndSwap(old, since) {
			return true
		}
	}
}

// Ended reports whether the connection was ended to make room.
func (s *Slot) Ended() bool { return s.idle.Load() == slotEnded }

// Release gives the place back. It may be called again.
func (s *Slot) Release() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.remove()
}

// remove uncounts the connection, once. mu must be held.
func (s *Slot) remove() {
	c := s.all
	if _, ok := c.open[s]; !ok {
		return
	}
	delete(c.open, s)
	if s.place == told {
		c.refused--
		return
	}
	counts := c.counts(s)
	if counts[s.address]--; counts[s.address] == 0 {
		delete(counts, s.address)
	}
}

// prefixOf is what counts as one address: an IPv4 address, or the /64 of an IPv6 one,
// which one client may have whole.
func prefixOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits)
	return p
}

// addressFull is the answer to a connection beyond the bound of its address.
func addressFull() *openai.Error {
	return openai.New(openai.RateLimitExceeded,
		"Your address has as many connections as one may: end some, or use them for more than one request.").After(5 * time.Second)
}

// isHealthPath reports whether a path tells of the server's health: it is served beyond the
// bound of an address.
func isHealthPath(path string) bool {
	return path == "/livez" || path == "/healthz" || path == "/readyz"
}

// refuseConnection answers a connection that is not served; false where it cannot be.
func refuseConnection(c net.Conn, reason string) bool {
	if _, ok := c.(*net.TCPConn); !ok {
		return false // TLS would have to shake hands first
	}
	e := openai.New(openai.QueueFull, "The server has as many connections as it may.").After(5 * time.Second)
	if reason == "address" {
		e = addressFull()
	}
	var res Response
	res.Refuse(e)
	now := time.Now()
	c.SetDeadline(now.Add(10 * time.Millisecond)) // not waited for: it fits an empty socket
	_, err := c.Write(appendLastAnswer(nil, &res, now.UTC().Format(http.TimeFormat)))
	return err == nil
}
