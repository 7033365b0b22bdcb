package httpserver

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// server is the state that servers share: the connections and their end.
type server struct {
	o        Options
	draining atomic.Bool
	cutting  atomic.Bool // the drain deadline has passed
	date     date

	mu          sync.Mutex
	watch       *watcher // from the first connection that needs it on
	watchFailed bool     // there is none to be had, or no longer
	listeners   map[net.Listener]struct{}
	conns       map[*conn]struct{}
	empty       chan struct{} // made by Shutdown, closed when the last connection is gone
}

func newServer(o Options) *server {
	return &server{o: o.withDefaults(), listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}}
}

// open registers a listener; false if the server is shutting down.
func (s *server) open(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return false
	}
	s.listeners[ln] = struct{}{}
	return true
}

// watcher is the server's epoll set, made when a connection first needs it: a
// test bubble without descriptors never has a goroutine in the netpoller, which
// would stop its clock.
func (s *server) watcher() *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch == nil && !s.watchFailed {
		w, err := newWatcher()
		if err != nil { // every watch is a look-ahead then
			s.o.Logger.Warn("no epoll set: departure is watched by reading ahead", "error", err)
		}
		s.watch, s.watchFailed = w, w == nil
	}
	return s.watch
}

// accept waits for the next connection and puts it behind the front.
func (s *server) accept(ln net.Listener) (*conn, error) {
	pause := 5 * time.Millisecond
	for {
		c, slot, err := s.o.Connections.Accept(ln)
		if err != nil {
			if isTransient(err) && !s.draining.Load() {
				s.o.Logger.Warn("accept failed, trying again", "error", err, "in", pause)
				time.Sleep(pause)
				pause = min(2*pause, time.Second)
				continue
			}
			return nil, err
		}
		w := newConn(s, c, slot)
		s.mu.Lock()
		if s.draining.Load() {
			s.mu.Unlock()
			slot.Release()
			c.Close()
			continue // Accept is about to fail
		}
		s.conns[w] = struct{}{}
		s.mu.Unlock()
		return w, nil
	}
}

// isTransient reports whether accept may succeed again soon.
func isTransient(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNABORTED)
}

// ended turns accept's error into Serve's.
func (s *server) ended(ln net.Listener, err error) error {
	s.mu.Lock()
	delete(s.listeners, ln)
	s.mu.Unlock()
	ln.Close()
	if s.draining.Load() || err == nil {
		return nil
	}
	return err
}

func (s *server) remove(c *conn) {
	c.slot.Release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

func (s *server) each(f func(*conn)) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

func (s *server) Shutdown(ctx context.Context) error {
	empty := make(chan struct{})
	s.mu.Lock()
	s.draining.Store(true)
	for ln := range s.listeners {
		ln.Close()
	}
	if s.empty = empty; len(s.conns) == 0 {
		close(empty)
		s.empty = nil
	}
	s.mu.Unlock()
	s.each(func(c *conn) { c.state.drain() })

	var err error
	select {
	case <-empty:
	case <-ctx.Done():
		err = ctx.Err()
		s.cutting.Store(true)
		s.each(func(c *conn) { c.state.clientLeft(ErrDraining) })
		if !waitFor(empty, s.o.CutGrace) {
			s.each(func(c *conn) { c.Conn.Close() })
			waitFor(empty, time.Second) // a handler that ignores its context is left behind
		}
	}
	s.mu.Lock()
	x := s.watch
	s.watch, s.watchFailed = nil, true
	s.mu.Unlock()
	if x != nil {
		x.close()
	}
	return err
}

func waitFor(done chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// date caches the Date field for the current second.
type date struct{ p atomic.Pointer[dateText] }

type dateText struct {
	unix int64
	text string
}

func (d *date) now(t time.Time) string {
	if p := d.p.Load(); p != nil && p.unix == t.Unix() {
		return p.text
	}
	p := &dateText{t.Unix(), t.UTC().Format(http.TimeFormat)}
	d.p.Store(p)
	return p.text
}
