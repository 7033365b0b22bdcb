package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// client is one connection. It has a bounded queue of its own, so a client that
// does not read cannot block the supervisor.
type client struct {
	conn   *jsonsocket.Conn
	out    chan reply
	closed chan struct{}
}

func (c *client) send(r reply) {
	select {
	case c.out <- r:
	default:
		c.conn.Close() // it does not read; after a reconnect it can list
	}
}

// close writes what is queued and closes the connection.
func (c *client) close() { close(c.out); <-c.closed }

// clientEvent is a request, or the begin or end of a connection.
type clientEvent struct {
	from *client
	req  *request // nil at begin and end
	gone bool
}

// accept serves connections until the listener is closed.
func (s *supervisor) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-s.stop:
				return
			}
		}
		go s.serve(conn)
	}
}

func (s *supervisor) serve(nc net.Conn) {
	if isOwnProcess(nc) {
		s.o.Log.Warn("an engine connected to the supervisor and was refused")
		nc.Close()
		return
	}
	conn := jsonsocket.NewConn(nc, MaxLine)
	conn.WriteWait = writeWait
	c := &client{conn: conn, out: make(chan reply, 1024), closed: make(chan struct{})}
	post := func(m clientEvent) bool {
		select {
		case s.inbox <- m:
			return true
		case <-s.stop:
			return false
		}
	}
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		defer close(c.closed)
		defer conn.Close()
		for {
			select {
			case r, ok := <-c.out:
				if !ok || conn.Send(r) != nil {
					return
				}
			case <-gone:
				return
			}
		}
	}()
	if !post(clientEvent{from: c}) {
		return
	}
	for {
		var r request
		if err := conn.Receive(&r); err != nil {
			break
		}
		if !post(clientEvent{from: c, req: &r}) {
			return
		}
	}
	post(clientEvent{from: c, gone: true})
}

func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// The lock is held, so an existing socket is stale.
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	short, done, err := jsonsocket.ShortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	// The umask, not a later chmod: other users could connect in between.
	old := syscall.Umask(0o177)
	ln, err := net.Listen("unix", short)
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	return unlinkingListener{ln, path}, nil
}

// unlinkingListener removes its socket on Close.
type unlinkingListener struct {
	net.Listener
	path string
}

func (l unlinkingListener) Close() error {
	os.Remove(l.path)
	return l.Listener.Close()
}
