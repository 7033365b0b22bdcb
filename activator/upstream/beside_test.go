package upstream

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// TestTake: which connection the next request gets, by how long those that are idle have
// rested and how many are in use.
func TestTake(t *testing.T) {
	const reused, closes, beside = "reused", "a resting one closes", "a new one beside them"
	const long, now = -time.Hour, time.Hour // however slow this machine is
	for _, x := range []struct {
		name   string
		sent   []time.Duration // when the idle ones got their last requests, newest last
		busy   int
		change func(p *peer)
		framed bool
		want   string
		at     int // which idle one is taken
	}{
		{name: "rested", sent: []time.Duration{long}, want: reused},
		{name: "the newest that is rested", sent: []time.Duration{long, long, now}, busy: 3, want: reused, at: 1},
		{name: "used by one request at a time", sent: []time.Duration{now}, want: closes},
		{name: "in use beside it", sent: []time.Duration{now}, busy: 1, want: beside},
		{name: "as many rest as are in use", sent: []time.Duration{now, now}, busy: 2, want: beside},
		{name: "more rest than are in use", sent: []time.Duration{now, now, now}, busy: 2, want: closes, at: 2},
		{name: "it is known to wait for their end", sent: []time.Duration{now}, busy: 4, change: func(p *peer) { p.fullUntil = time.Now().Add(time.Hour) }, want: closes},
		{name: "that was long ago", sent: []time.Duration{now}, busy: 4, change: func(p *peer) { p.fullUntil = time.Now().Add(-time.Hour) }, want: beside},
		{name: "slow answers", sent: []time.Duration{now}, busy: 4, change: func(p *peer) { p.rest = time.Hour }, want: closes},
		{name: "answers at once", sent: []time.Duration{now}, busy: 4, change: func(p *peer) { p.rest = minRest - 1 }, want: reused},
		{name: "few answers", sent: []time.Duration{now}, busy: 4, change: func(p *peer) { p.answers = minAnswers - 1 }, want: reused},
		{name: "a server of ours", sent: []time.Duration{now}, busy: 4, framed: true, want: reused},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := &peer{conns: map[*conn]struct{}{}, rest: 10 * time.Millisecond, answers: minAnswers}
			for range x.busy {
				p.conns[&conn{}] = struct{}{}
			}
			for _, at := range x.sent {
				k := &conn{transport: transport{socket: &socket{}}, sentAt: time.Now().Add(at)}
				p.conns[k] = struct{}{}
				p.idle = append(p.idle, k)
			}
			if x.change != nil {
				x.change(p)
			}
			idle := append([]*conn(nil), p.idle...)
			k, rested := p.take(false, x.framed)
			got := closes
			switch {
			case k == nil:
				got = beside
			case rested:
				got = reused
			}
			if got != x.want || k != nil && k != idle[x.at] {
				t.Errorf("got: %s, want: %s", got, x.want)
			}
		})
	}
}

// TestFewThreads: an engine with as many threads as it has clients, each of which serves one
// connection until that ends, answers every request, whatever rests.
func TestFewThreads(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var engine sync.WaitGroup
			for range threads {
				engine.Go(func() {
					for {
						nc, err := ln.Accept()
						if err != nil {
							return
						}
						serveSlowly(nc)
					}
				})
			}
			c := client(t, Options{IdleTimeout: time.Hour})
			var asking sync.WaitGroup
			for i := range threads {
				asking.Go(func() {
					for n := range 60 {
						want := fmt.Sprint(i, n)
						r, err := c.Do(t.Context(), postRequest(ln.Addr().String(), want))
						if err != nil {
							t.Error(err)
							return
						}
						if b, err := io.ReadAll(r); string(b) != want || err != nil {
							t.Errorf("%q for %q, %v", b, want, err)
						}
						r.Close()
					}
				})
			}
			asking.Wait()
			c.Close()
			ln.Close()
			engine.Wait()
		})
	}
}

// TestSurplusEverMoreRarely: each connection beside others that an engine does not serve keeps
// the next one away for twice as long.
func TestSurplusEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		for _, wait := range []time.Duration{minFull, 2 * minFull, 4 * minFull, 8 * minFull} {
			done := c.watch(&conn{addr: "e:1"})
			time.Sleep(minPatience)
			synctest.Wait()
			done()
			p := c.peerAt("e:1")
			for after, want := range map[time.Duration]bool{0: false, wait - 1: false, wait: true} {
				if got := p.grows(time.Now().Add(after)); got != want {
					t.Errorf("%s after a wait of %s: another connection is opened: %t", after, wait, got)
				}
			}
			time.Sleep(wait)
		}
	})
}

// serveSlowly answers the requests of a connection after some milliseconds, which differ.
func serveSlowly(nc net.Conn) {
	defer nc.Close()
	br := bufio.NewReader(nc)
	for n := 0; ; n++ {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		<-time.After(time.Duration(2+3*(len(body)+n)%7) * time.Millisecond)
		if _, err := io.WriteString(nc, whole(string(body))); err != nil {
			return
		}
	}
}

// earlyConn is an engine's end of a connection that answers a large request before it has read
// all of it.
type earlyConn struct {
	net.Conn
	used   bool
	spoken *atomic.Int32
}

func (c *earlyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > lastWrite && !c.used {
		c.used = true
		c.spoken.Add(1)
		io.WriteString(c, okHello)
	}
	return n, err
}

// TestSecondTryBesideOthers: a request whose connection ends, or answers too early, goes on a new
// one, although others are idle: they may do the same.
func TestSecondTryBesideOthers(t *testing.T) {
	for _, size := range []int{10, 8 << 20} {
		var all sync.WaitGroup
		all.Add(3)
		var tries, dialled atomic.Int32
		e := newWrappedEngine(t, func(c net.Conn) net.Conn {
			return &earlyConn{Conn: c, used: dialled.Add(1) > 3, spoken: &tries}
		}, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
			if n == 0 {
				io.WriteString(c, okHello)
			} else if size <= lastWrite {
				tries.Add(1)
			}
			return n == 0
		})
		c := client(t, Options{IdleTimeout: time.Hour})
		for range 3 {
			go func() {
				r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
				if err != nil {
					t.Error(err)
				}
				all.Done()
				all.Wait() // each has a connection
				if err == nil {
					io.ReadAll(r)
					r.Close()
				}
			}()
		}
		all.Wait()
		testkit.Eventually(t, "three connections are idle", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.count == 3
		})
		r, err := c.Do(t.Context(), postRequest(e.addr, strings.Repeat("x", size)))
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		io.ReadAll(r)
		r.Close()
		if e.conns.Load() != 4 || tries.Load() != 1 {
			t.Errorf("%d bytes: %d connections, %d tries before the last", size, e.conns.Load(), tries.Load())
		}
	}
}

// TestReportsApart: what was found at one address is reported by its next answer, whatever the
// answers of others are meanwhile.
func TestReportsApart(t *testing.T) {
	c := New(Options{})
	c.markUnsolicited("a:1")
	c.peerAt("b:1")
	for _, addr := range []string{"b:1", "c:1", "b:1"} {
		var res Response
		if c.report(addr, &res); res.Unsolicited != 0 || res.FirstUnsolicited {
			t.Errorf("%s: %+v", addr, res)
		}
	}
	for _, want := range []int{1, 0} {
		var res Response
		if c.report("a:1", &res); res.Unsolicited != want || res.FirstUnsolicited != (want > 0) {
			t.Errorf("%+v, want %d", res, want)
		}
	}
}
