package controlstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// town is a network in memory, with hosts by address. Its connections can be cut, or frozen
// like those of a stopped process or a lost cable.
type town struct {
	t     *testing.T
	mu    sync.Mutex
	hosts map[string]*host
	names map[string][]string
	dials []time.Time
	log   bytes.Buffer
}

type host struct {
	conns  chan net.Conn
	closed chan struct{}
	server *http.Server
	done   chan struct{}
	mute   bool // accepts no connection
	mu     sync.Mutex
	open   []*cable
}

// cable is one end of a connection. While frozen it accepts writes and delivers nothing,
// like a socket whose other end is stopped.
type cable struct {
	net.Conn
	frozen chan struct{} // closed while frozen
	closed chan struct{} // closed by Close
	once   sync.Once
	gate   chan struct{} // capacity 1: Read returns while it has an element
}

func newCable(c net.Conn, frozen chan struct{}) *cable {
	gate := make(chan struct{}, 1)
	gate <- struct{}{}
	return &cable{Conn: c, frozen: frozen, closed: make(chan struct{}), gate: gate}
}

func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate <- <-c.gate
	select {
	case <-c.frozen:
		<-c.closed // nothing is delivered
		return 0, net.ErrClosed
	default:
	}
	return n, err
}

func (c *cable) Write(b []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(b), nil
	default:
		return c.Conn.Write(b)
	}
}

func newTown(t *testing.T) *town {
	return &town{t: t, hosts: map[string]*host{}, names: map[string][]string{}}
}

func (t *town) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.log.Write(b)
}

func (t *town) logged() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.log.String()
}

func (t *town) logger() *slog.Logger { return slog.New(slog.NewTextHandler(t, nil)) }

// serve starts a server at an address.
func (t *town) serve(addr string, h http.Handler) *host {
	s := &host{conns: make(chan net.Conn), closed: make(chan struct{}), server: &http.Server{Handler: h}, done: make(chan struct{})}
	Configure(s.server)
	t.mu.Lock()
	t.hosts[addr] = s
	t.mu.Unlock()
	go func() {
		defer close(s.done)
		s.server.Serve(s)
	}()
	return s
}

func (h *host) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}
func (h *host) Close() error   { close(h.closed); return nil }
func (h *host) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 8090} }

// end stops a server. Its hub ends hijacked connections.
func (h *host) end() { h.server.Close(); <-h.done }

// freeze stops all traffic over the open connections.
func (h *host) freeze() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.open {
		close(c.frozen)
	}
	h.open = nil
}

func (t *town) dial(ctx context.Context, addr string) (net.Conn, error) {
	t.mu.Lock()
	t.dials = append(t.dials, time.Now())
	s := t.hosts[addr]
	t.mu.Unlock()
	if s == nil {
		return nil, errors.New("connection refused")
	}
	if s.mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a, b := net.Pipe()
	frozen := make(chan struct{})
	near, far := newCable(a, frozen), newCable(b, frozen)
	select {
	case s.conns <- far:
	case <-s.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	s.open = append(s.open, near)
	s.mu.Unlock()
	return near, nil
}

func (t *town) lookup(_ context.Context, name string) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.names[name]; a != nil {
		return append([]string(nil), a...), nil
	}
	return nil, errors.New("no such host")
}

// activator starts an activator in the town.
func (t *town) activator(id string, f Feed) (*Activator, func()) {
	a := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: "control:8090", Token: secret, Hello: Hello{ID: id}, Dial: t.dial,
		Lookup: t.lookup, Log: t.logger()}})
	attach(a, f)
	return a, t.run(a.Run)
}

// run is start for a synctest bubble: stop must be called before the bubble ends.
func (t *town) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			t.t.Error(err)
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-done })
}

func at(ip int) string { return fmt.Sprintf("10.0.0.%d", ip) }

// TestTheOneThatLeads: all addresses of the name are dialled at once; a controller that
// does not lead redirects, and a silent one delays no other.
func TestTheOneThatLeads(t *testing.T) {
	for what, c := range map[string]struct {
		names []int // addresses of the name
		lead  int
		told  bool // the others know the leader's address
		mute  int
	}{
		"one of three":               {[]int{1, 2, 3}, 2, false, 0},
		"not of the name, but told":  {[]int{1, 2}, 9, true, 0},
		"beside one that is silent":  {[]int{1, 2}, 2, false, 1},
		"told beside a silent one":   {[]int{1, 2}, 9, true, 1},
		"the name has an old one":    {[]int{1, 5}, 1, false, 0},
		"the only one, which leads":  {[]int{1}, 1, false, 0},
		"told who leads by all":      {[]int{1, 2, 3}, 3, true, 0},
		"told by one, silent others": {[]int{1, 2, 3}, 3, true, 2},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t)
				var ends []func()
				for _, ip := range append([]int{c.lead}, c.names...) {
					addr := at(ip) + ":8090"
					if w.hosts[addr] != nil || ip == 5 {
						continue
					}
					h := NewHub(HubOptions{Tokens: tokens(secret), Leads: func() (bool, string) {
						if !c.told {
							return ip == c.lead, ""
						}
						return ip == c.lead, at(c.lead) + ":8090"
					}})
					s := w.serve(addr, h)
					s.mute = ip == c.mute
					ends = append(ends, s.end, h.Close)
				}
				for _, ip := range c.names {
					w.names["control"] = append(w.names["control"], at(ip))
				}
				began := time.Now()
				a, stop := w.activator("a", newFeed())
				<-a.Synced()
				if took := time.Since(began); a.Leader() != at(c.lead)+":8090" || took > time.Second {
					t.Errorf("linked to %q after %v\n%s", a.Leader(), took, w.logged())
				}
				stop()
				for _, end := range ends {
					end()
				}
			})
		})
	}
}

// TestSilentAddress: if a lost node's address is silent, the next controller is found as
// soon as it leads.
func TestSilentAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1), at(2)}
		var leads atomic.Bool
		h := NewHub(HubOptions{Tokens: tokens(secret), Leads: func() (bool, string) { return leads.Load(), "" }})
		s := w.serve(at(2)+":8090", h)
		silent := w.serve(at(1)+":8090", nil)
		silent.mute = true
		a, stop := w.activator("a", newFeed())
		for after := range 5 {
			time.Sleep(time.Duration(3000+777*after) * time.Millisecond)
			leads.Store(true)
			began := time.Now()
			for !a.Connected() {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took > 3*redialMost/2+10*time.Millisecond {
				t.Errorf("found %v after it leads", took)
			}
			leads.Store(false)
			s.freeze()
			h.mu.Lock()
			for s := range h.streams {
				s.end(net.ErrClosed)
			}
			h.mu.Unlock()
			for a.Connected() {
				time.Sleep(time.Millisecond)
			}
		}
		stop()
		s.end()
		silent.end()
		h.Close()
	})
}

// TestRedial: a client that finds no controller retries, with growing pauses and without
// end, and logs it once.
func TestRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		began := time.Now()
		a, stop := w.activator("a", newFeed())
		time.Sleep(time.Minute)
		synctest.Wait()
		w.mu.Lock()
		second, n := w.dials[1].Sub(began), len(w.dials)
		w.mu.Unlock()
		if second > 80*time.Millisecond || n < 40 || n > 150 || a.Connected() {
			t.Errorf("the second try after %v, %d in a minute", second, n)
		}
		if n := strings.Count(w.logged(), "connection refused"); n != 1 {
			t.Errorf("it was told %d times\n%s", n, w.logged())
		}
		h := NewHub(HubOptions{Tokens: tokens(secret)})
		s := w.serve(at(1)+":8090", h)
		began = time.Now()
		<-a.Synced()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("linked %v after it was there", took)
		}
		s.end()
		h.Close()
		time.Sleep(time.Second)
		if a.Connected() || a.Leader() != "" {
			t.Error("linked to a hub that is closed")
		}
		stop()
	})
}

// TestWrongToken: a peer without the token is refused and receives nothing.
func TestWrongToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		joined := false
		h := NewHub(HubOptions{Tokens: tokens("another-one"), Joined: func(Kind, string) { joined = true },
			Leads: func() (bool, string) { return false, "10.9.9.9:1" }})
		s := w.serve(at(1)+":8090", h)
		a, stop := w.activator("a", newFeed())
		time.Sleep(10 * time.Second)
		if a.Connected() || joined || !strings.Contains(w.logged(), "refuses our token") || strings.Contains(w.logged(), "10.9.9.9") {
			t.Errorf("linked %v\n%s", a.Connected(), w.logged())
		}
		stop()
		s.end()
		h.Close()
		none := NewHub(HubOptions{Tokens: tokens("")}) // a hub without a token refuses too
		s = w.serve(at(1)+":8090", none)
		b := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: "control:8090", Hello: Hello{ID: "b"}, Dial: w.dial,
			Lookup: w.lookup}})
		attach(b, newFeed())
		stop = w.run(b.Run)
		time.Sleep(10 * time.Second)
		if b.Connected() {
			t.Error("linked without any token")
		}
		stop()
		s.end()
		none.Close()
	})
}

// TestFrozen: each end detects a silent peer within seconds: the activator dials another
// controller, and the hub drops the activator's demand.
func TestFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		left := make(chan string, 4)
		h, sums := watched(HubOptions{Left: func(_ Kind, id string) { left <- id }})
		h.Publish(ready(name("m"), "r"))
		s := w.serve(at(1)+":8090", h)
		f := newFeed()
		f.want(activator.Demand{Name: name("m"), Active: 2, Queued: 1})
		f.fly(name("m"), "r", 2)
		a, stop := w.activator("a", f)
		<-a.Synced()
		time.Sleep(time.Minute) // an idle connection stays open
		select {
		case id := <-left:
			t.Fatalf("%s left\n%s", id, w.logged())
		default:
		}
		if d := sums.demand(name("m")); d.Active != 2 || d.Queued != 1 || d.InFlight["r"] != 2 {
			t.Fatalf("demand %+v", d)
		}
		sums.takeNews()
		time.Sleep(10 * pingEvery)
		if d := sums.takeNews(); len(d) != 0 {
			t.Errorf("what has not changed is news: %+v", d)
		}
		w.mu.Lock()
		dials := len(w.dials)
		w.mu.Unlock()
		began := time.Now()
		stop2 := w.freezeAll(s)
		<-left
		if took := time.Since(began); took > deadAfter+pingEvery {
			t.Errorf("the hub noticed after %v", took)
		}
		synctest.Wait()
		if d := sums.demand(name("m")); d.Active != 2 {
			t.Errorf("it is not believed for a moment: %+v", d)
		}
		time.Sleep(grace)
		synctest.Wait()
		w.mu.Lock()
		again := len(w.dials) > dials
		w.mu.Unlock()
		if !again {
			t.Error("the activator did not look for another controller")
		}
		d := sums.demand(name("m"))
		if d.Active != 0 || d.Queued != 0 || d.InFlight["r"] != 0 || d.LastEnd.Before(began) {
			t.Errorf("after its grace: %+v", d)
		}
		stop2()
		stop()
		s.end()
		h.Close()
	})
}

// freezeAll freezes the connections of a host and refuses new ones.
func (t *town) freezeAll(s *host) (thaw func()) {
	s.freeze()
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts := t.hosts
	t.hosts = map[string]*host{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.hosts = hosts
	}
}

// TestBelieved: an activator that is disconnected for less than its grace keeps its demand;
// when it connects again it replaces its former connection and sends a full sync.
func TestBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h, sums := watched(HubOptions{})
		h.Publish(ready(name("m")), ready(name("n")))
		s := w.serve(at(1)+":8090", h)
		f := newFeed()
		f.want(activator.Demand{Name: name("m"), Queued: 1})
		a, stop := w.activator("a", f)
		<-a.Synced()
		synctest.Wait()
		if d := sums.demand(name("m")); d.Queued != 1 {
			t.Fatalf("%+v", d)
		}
		stop()
		time.Sleep(grace / 2)
		synctest.Wait()
		if d := sums.demand(name("m")); d.Queued != 1 {
			t.Errorf("it is not believed: %+v", d)
		}
		f2 := newFeed()
		f2.want(activator.Demand{Name: name("n"), Queued: 4})
		b, stop := w.activator("a", f2)
		<-b.Synced()
		synctest.Wait()
		if d := sums.demand(name("n")); d.Queued != 4 || sums.demand(name("m")).Queued != 0 {
			t.Errorf("it has not replaced its former self: %+v", d)
		}
		if got := h.Activators(); len(got) != 1 {
			t.Errorf("%v", got)
		}
		// A second activator of the same ID replaces the first, which connects again; their
		// demand is never added up.
		f3 := newFeed()
		f3.want(activator.Demand{Name: name("n"), Queued: 4})
		_, stop3 := w.activator("a", f3)
		for range 50 {
			time.Sleep(37 * time.Millisecond)
			synctest.Wait()
			if d := sums.demand(name("n")); d.Queued != 4 {
				t.Fatalf("%+v", d)
			}
		}
		stop3()
		stop()
		time.Sleep(2 * grace)
		synctest.Wait()
		if d := sums.demand(name("n")); d.Queued != 0 {
			t.Errorf("%+v", d)
		}
		s.end()
		h.Close()
	})
}

// TestAppliedByAll: an activator that has just been disconnected still routes by its last
// table, so a newer table is not applied by all yet.
func TestAppliedByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h := NewHub(HubOptions{Tokens: tokens(secret)})
		h.SetTable(&Table{Version: 1})
		s := w.serve(at(1)+":8090", h)
		a, stopA := w.activator("a", newFeed())
		b, stopB := w.activator("b", newFeed())
		<-a.Synced()
		<-b.Synced()
		synctest.Wait()
		stopB()
		h.SetTable(&Table{Version: 2})
		synctest.Wait()
		if v, n := h.OldestApplied(); v != 1 || n != 1 {
			t.Errorf("%d is applied by %d, and one that was there a moment ago has 1", v, n)
		}
		time.Sleep(grace)
		if v, n := h.OldestApplied(); v != 2 || n != 1 {
			t.Errorf("%d is applied by %d, and the other one has gone", v, n)
		}
		stopA()
		synctest.Wait()
		if v, n := h.OldestApplied(); v != 0 || n != 0 {
			t.Errorf("%d is applied by %d, and nobody is there", v, n)
		}
		s.end()
		h.Close()
	})
}

// TestNodeReplaced: a loader that connects again before its old connection's end was
// noticed is connected, and not reported as left.
func TestNodeReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		var mu sync.Mutex
		var log []string
		note := func(what string) func(Kind, string) {
			return func(k Kind, id string) { mu.Lock(); defer mu.Unlock(); log = append(log, what+" "+string(k)+" "+id) }
		}
		var heard []string
		h := NewHub(HubOptions{Tokens: tokens(secret), Joined: note("joined"), Left: note("left"),
			Pods: func(node string, whole bool, pods []Pod) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, fmt.Sprint(node, whole, len(pods)))
			}})
		s := w.serve(at(1)+":8090", h)
		node := func(pods ...Pod) (*Client, func()) {
			c := NewClient(ClientOptions{Addr: "control:8090", Token: secret, Hello: Hello{Kind: KindNode, ID: "n"},
				First: func() Report { return Report{Pods: pods} }, Dial: w.dial, Lookup: w.lookup})
			return c, w.run(c.Run)
		}
		_, stop := node(Pod{UID: "1"}, Pod{UID: "2"})
		synctest.Wait()
		s.freeze()
		_, stop2 := node(Pod{UID: "1"})
		time.Sleep(time.Second)
		stop()
		time.Sleep(2 * deadAfter)
		if !h.SendToNode("n", Update{Stop: []Stop{{UID: "1"}}}) {
			t.Error("the node is there")
		}
		mu.Lock()
		if fmt.Sprint(log) != "[joined node n joined node n]" || fmt.Sprint(heard) != "[ntrue 2 ntrue 1]" {
			t.Errorf("%v, %v", log, heard)
		}
		mu.Unlock()
		stop2()
		synctest.Wait()
		mu.Lock()
		if fmt.Sprint(log) != "[joined node n joined node n left node n]" {
			t.Errorf("%v", log)
		}
		mu.Unlock()
		if h.SendToNode("n", Update{}) {
			t.Error("it is told though it is gone")
		}
		s.end()
		h.Close()
	})
}

// coordinatorLog records the calls of a hub: R for a report, F for the first of a connection,
// D for a disconnection.
type coordinatorLog struct {
	mu    sync.Mutex
	calls string
}

func (c *coordinatorLog) add(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call != "R" { // these come every second
		c.calls += call
	}
}

func (c *coordinatorLog) Report(_ string, first bool, _ *ratelimit.UsageReports, _ time.Time) error {
	if first {
		c.add("F")
	} else {
		c.add("R")
	}
	return nil
}

func (c *coordinatorLog) OnDisconnect(string, time.Time) { c.add("D") }

func (c *coordinatorLog) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// TestCoordinatorOfAReplacedActivator: the end of an activator's former connection is not
// reported to the Coordinator while its next connection is open, else the limits that this
// activator holds would be given away.
func TestCoordinatorOfAReplacedActivator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		coordinator := &coordinatorLog{}
		h := NewHub(HubOptions{Tokens: tokens(secret), Coordinator: coordinator})
		s := w.serve(at(1)+":8090", h)
		first, stop := w.activator("a", newFeed())
		<-first.Synced()
		s.freeze() // its end is not noticed yet
		next, stop2 := w.activator("a", newFeed())
		<-next.Synced()
		stop()
		time.Sleep(2 * deadAfter)
		synctest.Wait()
		if got := coordinator.String(); got != "FF" || len(h.Activators()) != 1 {
			t.Errorf("the coordinator got %s of %v, want FF of one", got, h.Activators())
		}
		stop2()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := coordinator.String(); got != "FFD" {
			t.Errorf("after the last connection: %s, want FFD", got)
		}
		s.end()
		h.Close()
	})
}

// TestQuiet: a Quiet hub sends activators nothing; its first message after StartSending is a full
// sync, which removes every function it does not name.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		first := NewHub(HubOptions{Tokens: tokens(secret)})
		first.Publish(ready(name("m"), "r"), ready(name("old"), "o"))
		first.SetTable(&Table{Version: 900})
		s := w.serve(at(1)+":8090", first)
		f := newFeed()
		a, stop := w.activator("a", f)
		<-a.Synced()
		f.want(activator.Demand{Name: name("m"), LastEnd: time.Now()})
		f.fly(name("old"), "o", 1)
		synctest.Wait()
		if v, n := first.OldestApplied(); v != 900 || n != 1 {
			t.Errorf("applied %d by %d", v, n)
		}
		end := time.Now()
		s.end()
		first.Close()

		next, sums := watched(HubOptions{Quiet: true})
		next.Publish(ready(name("m")), ready(name("new")))
		s = w.serve(at(1)+":8090", next)
		time.Sleep(20 * time.Second)
		if p, _ := f.has(name("m")); !a.Connected() || len(p.Replicas) != 1 {
			t.Errorf("linked %v, %+v", a.Connected(), p)
		}
		if v, n := next.OldestApplied(); v != 0 || n != 1 {
			t.Errorf("another one's table was applied: %d by %d", v, n)
		}
		if d := sums.demand(name("m")); !d.LastEnd.Equal(end) {
			t.Errorf("m was used last at %v, want %v", d.LastEnd, end)
		}
		next.Publish(ready(name("m"), "r"), ready(name("new")))
		next.StartSending()
		synctest.Wait()
		p, _ := f.has(name("m"))
		_, old := f.has(name("old"))
		_, fresh := f.has(name("new"))
		if len(p.Replicas) != 1 || old || !fresh {
			t.Errorf("%+v, old %v, new %v", p, old, fresh)
		}
		if n := sums.demand(name("old")).InFlight["o"]; n != 1 {
			t.Errorf("%d are in flight at a replica of one that was taken out", n)
		}
		f.fly(name("old"), "o", 0)
		time.Sleep(2 * pingEvery)
		synctest.Wait()
		if n := sums.demand(name("old")).InFlight["o"]; n != 0 {
			t.Errorf("%d are in flight at a replica of one that was taken out", n)
		}
		stop()
		s.end()
		next.Close()
	})
}

// slow is a feed that blocks while it publishes a snapshot.
type slow struct {
	*feed
	wait chan struct{}
}

func (s slow) Publish(fs ...snapshot.Snapshot) { <-s.wait; s.feed.Publish(fs...) }

// TestNotHeardYet: a replica that left the routes counts as in use until each activator has
// acknowledged that and reported the requests it sent to the replica meanwhile.
func TestNotHeardYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h, sums := watched(HubOptions{})
		h.Publish(ready(name("m"), "r"))
		s := w.serve(at(1)+":8090", h)
		f := slow{newFeed(), make(chan struct{})}
		_, stop := w.activator("a", f)
		f.wait <- struct{}{}
		_, stop2 := w.activator("b", newFeed())
		synctest.Wait()
		if n := sums.demand(name("m")).InFlight["r"]; n != 0 {
			t.Fatalf("%d", n)
		}
		h.Publish(ready(name("m")))
		synctest.Wait()
		if n := sums.demand(name("m")).InFlight["r"]; n != 1 {
			t.Errorf("%d, while one has not heard", n)
		}
		f.fly(name("m"), "r", 2) // two requests were sent just before
		f.want(activator.Demand{Name: name("m"), Active: 2})
		f.wait <- struct{}{}
		synctest.Wait()
		if n := sums.demand(name("m")).InFlight["r"]; n != 2 {
			t.Errorf("%d, of the two it was given", n)
		}
		f.fly(name("m"), "r", 0)
		f.want(activator.Demand{Name: name("m")})
		time.Sleep(pingEvery)
		synctest.Wait()
		if n := sums.demand(name("m")).InFlight["r"]; n != 0 {
			t.Errorf("%d, of none", n)
		}
		stop2()
		stop()
		s.end()
		h.Close()
	})
}

// TestBadPeer: an invalid message ends its own connection and no other.
func TestBadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h, sums := watched(HubOptions{})
		s := w.serve(at(1)+":8090", h)
		a, stop := w.activator("good", newFeed())
		<-a.Synced()
		for what, say := range map[string]func(*stream) error{
			"nothing":  func(*stream) error { return nil },
			"no hello": func(p *stream) error { return p.write((Report{}).pack(true, 0, time.Now())) },
			"no name": func(p *stream) error {
				return p.write((Report{Hello: &Hello{Kind: KindNode}}).pack(true, 0, time.Now()))
			},
			"another kind": func(p *stream) error {
				return p.write((Report{Hello: &Hello{Kind: "spy", ID: "x"}}).pack(true, 0, time.Now()))
			},
			"garbage":  func(p *stream) error { return p.send([]byte{4, 1, 2, 3, 4}) },
			"a length": func(p *stream) error { return p.send([]byte{0xfc, 255, 255, 255, 255}) },
			"less than nothing": func(p *stream) error {
				return p.write((Report{Hello: &Hello{Kind: KindActivator, ID: "bad"}, Demand: []activator.Demand{{Name: name("m"), Queued: -4}}}).pack(true, 0, time.Now()))
			},
		} {
			p, err := NewClient(ClientOptions{Token: secret, Dial: w.dial}).openStream(t.Context(), at(1)+":8090")
			if err != nil {
				t.Fatal(err)
			}
			if err := say(p); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			began := time.Now()
			var f updateFrame
			for {
				if err = p.read(&f); err != nil {
					break
				}
			}
			if took := time.Since(began); took > 2*deadAfter {
				t.Errorf("%s: it was let in for %v", what, took)
			}
			p.end(nil)
		}
		synctest.Wait()
		if got := h.Activators(); len(got) != 1 || got[0] != "good" {
			t.Errorf("%v", got)
		}
		if d := sums.demand(name("m")); d.Queued != 0 {
			t.Errorf("%+v", d)
		}
		stop()
		s.end()
		h.Close()
	})
}

// TestStorm: values of one subject replace each other while the other end reads nothing;
// the newest of each arrives.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.names["control"] = []string{at(1)}
		h := NewHub(HubOptions{Tokens: tokens(secret)})
		h.Publish(ready(name("m")))
		s := w.serve(at(1)+":8090", h)
		f := slow{newFeed(), make(chan struct{})}
		a, stop := w.activator("a", f)
		f.wait <- struct{}{}
		<-a.Synced()
		synctest.Wait()
		gate := s.open[0].gate
		<-gate
		for i := range 10000 {
			p := ready(name("m"))
			p.Progress = functions.Progress{Percent: i % 100, ETA: time.Duration(i)}
			h.Publish(p)
			if i == 0 {
				synctest.Wait() // the first is written
			}
		}
		gate <- struct{}{}
		told := 0
		for p := (snapshot.Snapshot{}); p.Progress.ETA != 9999; p, _ = f.has(name("m")) {
			f.wait <- struct{}{}
			told++
			synctest.Wait()
		}
		if told > 4 {
			t.Errorf("it was told %d of 10000 pictures", told)
		}
		stop()
		s.end()
		h.Close()
	})
}
