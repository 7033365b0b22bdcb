package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// TestExchange: a cancel ends the exchange that it is of, while that is under way, and no other.
func TestExchange(t *testing.T) {
	var e exchange
	left := errors.New("the client left")
	check := func(when string, cancels, want bool, cause error) {
		t.Helper()
		if got := e.cause(); cancels != want || got != cause {
			t.Errorf("%s: cancelled %v, because of %v", when, cancels, got)
		}
	}
	stopped := 0
	first := e.begin(time.Now())
	e.stop = func() bool { stopped++; return true }
	if !e.end() || e.end() || stopped != 1 {
		t.Errorf("its hook was removed %d times", stopped)
	}
	check("behind the end", e.cancel(first, left), false, nil)
	second := e.begin(time.Now())
	check("in the next one", e.cancel(first, left), false, nil)
	check("in its own", e.cancel(second, left), true, left)
	var without exchange
	if without.cancel(without.begin(time.Now()), nil); without.cause() != context.Canceled {
		t.Errorf("without a cause: %v", without.cause())
	}
}

// TestCutOfCancelled: an exchange whose client left stays that, also where its engine is cut then;
// and a cancel behind a cut is one of the client.
func TestCutOfCancelled(t *testing.T) {
	c := New(Options{})
	left := errors.New("the client left")
	local, remote := net.Pipe()
	defer remote.Close()
	k := newConn(c, "e:1", local)
	gen := k.exchange.begin(time.Now())
	k.cancel(gen, left)
	k.abort()
	if e := k.failed(ErrNoAnswer, net.ErrClosed); !errors.Is(e, ErrCancelled) || !errors.Is(e, left) || errors.Is(e, ErrCut) {
		t.Error(e)
	}
	local, remote = net.Pipe()
	defer remote.Close()
	k = newConn(c, "e:1", local)
	gen = k.exchange.begin(time.Now())
	k.abort()
	if e := k.failed(ErrNoAnswer, net.ErrClosed); errors.Is(e, ErrCancelled) || !errors.Is(e, ErrCut) || !errors.Is(e, ErrNoAnswer) {
		t.Error(e)
	}
	k.cancel(gen, left)
	if e := k.failed(ErrNoAnswer, net.ErrClosed); !errors.Is(e, ErrCancelled) || !errors.Is(e, left) {
		t.Error(e)
	}
}

// unhookedContext is a context whose hooks run too late.
type unhookedContext struct{ context.Context }

func (unhookedContext) AfterFunc(func()) func() bool { return func() bool { return true } }

// TestLeftBeforeItsHook: a request whose client left as its engine failed is one whose client left,
// and not sent again, also where the connection does not know of it yet.
func TestLeftBeforeItsHook(t *testing.T) {
	for before := range 2 { // requests on the connection
		left := errors.New("the client left")
		ctx, cancel := context.WithCancelCause(t.Context())
		e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
			if n < before {
				_, err := io.WriteString(c, okHello)
				return err == nil
			}
			cancel(left)
			return false
		})
		c := client(t, Options{IdleTimeout: time.Hour})
		for range before {
			r, err := c.Do(unhookedContext{ctx}, postRequest(e.addr, "x"))
			if err != nil {
				t.Fatal(err)
			}
			io.ReadAll(r)
			r.Close()
		}
		_, err := c.Do(unhookedContext{ctx}, postRequest(e.addr, "x"))
		if !errors.Is(err, ErrCancelled) || !errors.Is(err, left) || e.conns.Load() != 1 {
			t.Errorf("behind %d: %v, %d connections", before, err, e.conns.Load())
		}
	}
}

// TestEndedAtOnce: an engine that closes a new connection before it gets the request has failed it.
func TestEndedAtOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dials := 0
	c := client(t, Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		if dials++; dials > 20 {
			return nil, errors.New("too many")
		}
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		engine, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		engine.Close()
		k := newConn(New(Options{}), "", nc)
		testkit.Eventually(t, "the connection has not ended", func() bool { return k.transport.look() == ended })
		return nc, nil
	}})
	if _, err := c.Do(t.Context(), postRequest("e:1", "{}")); !errors.Is(err, ErrNoAnswer) || dials != 1 {
		t.Errorf("%v after %d connections", err, dials)
	}
}
