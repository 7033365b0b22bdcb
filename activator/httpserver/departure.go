package httpserver

import (
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// Context is a context without a deadline or values, whose Err is its cause. A standard one
// that an engine's exchange watches costs six allocations a request; this costs one, and a
// channel only on Done. The zero value has not ended; it must not be copied.
type Context struct {
	mu    sync.Mutex
	err   error
	done  chan struct{} // made when first asked for
	funcs []*func()
	one   [1]*func()
}

func (*Context) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*Context) Value(any) any               { return nil }

func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// AfterFunc calls f in a goroutine of its own when c has ended, unless stop was
// called before; stop reports whether it came in time. Package context looks for
// this method.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	p := &f
	if c.funcs == nil {
		c.funcs = c.one[:0]
	}
	c.funcs = append(c.funcs, p)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.funcs, p)
		if i < 0 {
			return false
		}
		c.funcs = slices.Delete(c.funcs, i, i+1)
		return true
	}
}

// End ends the context; the first call sets the cause.
func (c *Context) End(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = reason
	if c.done != nil {
		close(c.done)
	}
	for _, f := range c.funcs {
		go (*f)()
	}
	c.funcs = nil
}

type phase uint8

const (
	idle     phase = iota // no byte of a request yet
	reading               // some of one
	busy                  // the handler has one, or its answer is being written
	upgraded              // it is a socket, whose reads show when the client leaves
	closed                // the connection is over
)

// connState is what other goroutines than the one that serves a connection touch of it: the
// context of its exchange, the watch for its client's departure, and what a drain needs.
// Between startWatch and stopWatch a look-ahead goroutine may own in.buf[in.w:].
type connState struct {
	server *server
	in     *input

	mu      sync.Mutex
	phase   phase
	gone    bool
	ctx     *Context    // the context of this exchange, once asked for
	timer   *time.Timer // starts the watch
	watch   *watcher
	token   uint64        // in its epoll set; 0: not there
	ahead   chan struct{} // closed when the look-ahead goroutine has ended
	onDrain func()        // of an upgraded connection
}

// setPhase returns false, and sets nothing, where the connection is closed.
func (c *connState) setPhase(p phase) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == closed {
		return false
	}
	c.phase = p
	return true
}

// drain ends the connection where it is idle, and reports the drain to its upgraded one.
func (c *connState) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == idle {
		c.in.conn.Close()
	}
	if c.onDrain != nil {
		go c.onDrain()
	}
}

// context is the exchange's, made when it is first asked for.
func (c *connState) context() *Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx != nil {
		return c.ctx
	}
	c.ctx = &Context{}
	switch {
	case c.phase != busy && c.phase != upgraded:
		c.ctx.End(errAnswered)
	case c.gone:
		c.ctx.End(ErrGone)
	case c.server.cutting.Load():
		c.ctx.End(ErrDraining)
	case c.phase == upgraded: // is not watched
	case c.timer == nil:
		c.timer = time.AfterFunc(c.server.o.WatchAfter, c.startWatch)
	default:
		c.timer.Reset(c.server.o.WatchAfter)
	}
	return c.ctx
}

// setOnDrain has an upgraded connection call f when a drain begins, or now.
func (c *connState) setOnDrain(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.draining.Load() {
		go f()
		return
	}
	c.onDrain = f
}

// startWatch begins to watch for departure. A timer that fires late, into the next
// exchange, only begins early.
func (c *connState) startWatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil || c.phase == closed || c.gone || c.token != 0 || c.ahead != nil {
		return
	}
	if c.watch, c.token = watchConn(c); c.token != 0 {
		return
	}
	c.ahead = make(chan struct{})
	c.in.conn.SetReadDeadline(time.Time{}) // the one for an idle connection still stands
	go c.lookAhead(c.ahead)
}

// lookAhead reads into the buffer behind the request until the connection ends
// or the deadline is pulled. With a full buffer it can see no further and stops.
func (c *connState) lookAhead(done chan struct{}) {
	defer close(done)
	for in := c.in; in.w < len(in.buf); {
		n, err := in.conn.Read(in.buf[in.w:])
		in.w += n
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				c.clientLeft(ErrGone)
			}
			return
		}
	}
}

// clientLeft ends the exchange's context: the client has gone, or the drain is over.
func (c *connState) clientLeft(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = c.gone || cause == ErrGone
	if c.ctx != nil {
		c.ctx.End(cause)
	}
}

// stopWatch ends the watch and the context. After it returns, nothing of this
// exchange fires any more.
func (c *connState) stopWatch(cause error) {
	c.mu.Lock()
	requestCtx, ahead, watch, token := c.ctx, c.ahead, c.watch, c.token
	c.ctx, c.ahead, c.token = nil, nil, 0
	if requestCtx != nil && c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	if requestCtx == nil {
		return
	}
	if token != 0 {
		watch.remove(c.in.conn, token)
	}
	if ahead != nil {
		c.in.SetReadDeadline(time.Unix(1, 0))
		<-ahead
		c.in.SetReadDeadline(time.Time{})
	}
	requestCtx.End(cause)
}
