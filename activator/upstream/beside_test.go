package upstream

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
