package upstream

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
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
