// Package httpservertest has an in-memory network for tests of net/http servers and handlers in
// testing/synctest, and a listener that lets a test act while the server closes a connection; it
// has no server. Its connections have no descriptors and block on channels alone, so that a
// bubble's clock runs while they wait.
package httpservertest

import (
	"context"
	"net"
	"sync"
)

// Listener is a net.Listener whose clients come by Dial.
type Listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen makes a Listener; make it inside the bubble that uses it.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects to the listener's server; it waits for Accept.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// DialContext is Dial in the shape that http.Transport and upstream.Options want;
// the address is not looked at.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return l.Dial(ctx)
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial; connections live on.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr names the listener.
func (l *Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "memory" }
func (addr) String() string  { return "memory" }
