package httpservertest

import (
	"net"
	"sync"
	"sync/atomic"
)

// RaceListener accepts connections that do something in the moment when the server closes
// them.
type RaceListener struct {
	net.Listener
	Accepted chan *RaceConn // gets each connection; it must have room
}

// RaceConn is a connection of a RaceListener.
type RaceConn struct {
	net.Conn
	Again chan struct{} // gets a value at each Close but the first

	closing atomic.Pointer[func()]
	once    sync.Once
}

// Accept waits for the next connection.
func (l RaceListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	x := &RaceConn{Conn: c, Again: make(chan struct{}, 10)}
	l.Accepted <- x
	return x, nil
}

// OnClose lets the first Close call f before it closes the connection.
func (c *RaceConn) OnClose(f func()) { c.closing.Store(&f) }

// Close closes the connection.
func (c *RaceConn) Close() error {
	first := false
	c.once.Do(func() { first = true })
	if f := c.closing.Load(); !first {
		c.Again <- struct{}{}
	} else if f != nil {
		(*f)()
	}
	return c.Conn.Close()
}
