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

func (l *Context) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Context) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

// AfterFunc calls f in a goroutine of its own when l has ended, unless stop was
// called before; stop reports whether it came in time. Package context looks for
// this method.
func (l *Context) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go f()
		return func() bool { return false }
	}
	p := &f
	if l.funcs == nil {
		l.funcs = l.one[:0]
	}
	l.funcs = append(l.funcs, p)
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		i := slices.Index(l.funcs, p)
		if i < 0 {
			return false
		}
		l.funcs = slices.Delete(l.funcs, i, i+1)
		return true
	}
}

// End ends the context; the first call sets the cause.
func (l *Context) End(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = reason
	if l.done != nil {
		close(l.done)
	}
	for _, f := range l.funcs {
		go (*f)()
	}
	l.funcs = nil
}

// context is the exchange's, made when it is first asked for.
func (w *conn) context() *Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx != nil {
		return w.ctx
	}
	w.ctx = &Context{}
	switch {
	case w.phase != busy || w.closed:
		w.ctx.End(errAnswered)
	case w.gone:
		w.ctx.End(ErrGone)
	case w.s.cutting.Load():
		w.ctx.End(ErrDraining)
	case w.timer == nil:
		w.timer = time.AfterFunc(w.s.o.WatchAfter, w.arm)
	default:
		w.timer.Reset(w.s.o.WatchAfter)
	}
	return w.ctx
}

// arm begins to watch for departure. A timer that fires late, into the next
// exchange, only begins early.
func (w *conn) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.closed || w.gone || w.token != 0 || w.ahead != nil {
		return
	}
	if w.watch, w.token = watchConn(w); w.token != 0 {
		return
	}
	w.ahead = make(chan struct{})
	w.Conn.SetReadDeadline(time.Time{}) // the one for an idle connection still stands
	go w.lookAhead(w.ahead)
}

// lookAhead reads into the buffer behind the request until the connection ends
// or the deadline is pulled. With a full buffer it can see no further and stops.
func (w *conn) lookAhead(done chan struct{}) {
	defer close(done)
	for w.w < len(w.buf) {
		n, err := w.Conn.Read(w.buf[w.w:])
		w.w += n
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				w.clientLeft(ErrGone)
			}
			return
		}
	}
}

// clientLeft ends the exchange's context: the client has gone, or the drain is over.
func (w *conn) clientLeft(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = w.gone || cause == ErrGone
	if w.ctx != nil {
		w.ctx.End(cause)
	}
}

// disarm ends the watch and the context. After it returns, nothing of this
// exchange fires any more.
func (w *conn) disarm(cause error) {
	w.mu.Lock()
	requestCtx, ahead, watch, token := w.ctx, w.ahead, w.watch, w.token
	w.ctx, w.ahead, w.token = nil, nil, 0
	if requestCtx != nil && w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	if requestCtx == nil {
		return
	}
	if token != 0 {
		watch.remove(w, token)
	}
	if ahead != nil {
		w.Conn.SetReadDeadline(time.Unix(1, 0))
		<-ahead
		w.Conn.SetReadDeadline(time.Time{})
		w.readUntil = time.Time{}
	}
	requestCtx.End(cause)
}
