package door

import (
	"context"
	"errors"
	"os"
	"time"
)

// context is the exchange's, made when it is first asked for.
func (w *wire) context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx != nil {
		return w.ctx
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	switch {
	case w.phase != busy || w.closed:
		w.cancel(errAnswered)
	case w.gone:
		w.cancel(ErrGone)
	case w.s.cutting.Load():
		w.cancel(ErrDraining)
	case w.timer == nil:
		w.timer = time.AfterFunc(w.s.o.WatchAfter, w.arm)
	default:
		w.timer.Reset(w.s.o.WatchAfter)
	}
	return w.ctx
}

// arm begins to watch for departure. A timer that fires late, into the next
// exchange, only begins early.
func (w *wire) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.closed || w.gone || w.token != 0 || w.ahead != nil {
		return
	}
	if w.watch, w.token = watch(w); w.token != 0 {
		return
	}
	w.ahead = make(chan struct{})
	w.Conn.SetReadDeadline(time.Time{}) // the one for an idle connection still stands
	go w.lookAhead(w.ahead)
}

// lookAhead reads into the buffer behind the request until the connection ends
// or the deadline is pulled. With a full buffer it can see no further and stops.
func (w *wire) lookAhead(done chan struct{}) {
	defer close(done)
	for w.w < len(w.buf) {
		n, err := w.Conn.Read(w.buf[w.w:])
		w.w += n
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				w.leave(ErrGone)
			}
			return
		}
	}
}

// leave ends the exchange's context: the client has gone, or the drain is over.
func (w *wire) leave(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = w.gone || cause == ErrGone
	if w.cancel != nil {
		w.cancel(cause)
	}
}

// disarm ends the watch and the context. After it returns, nothing of this
// exchange fires any more.
func (w *wire) disarm(cause error) {
	w.mu.Lock()
	cancel, ahead, watch, token := w.cancel, w.ahead, w.watch, w.token
	w.ctx, w.cancel, w.ahead, w.token = nil, nil, nil, 0
	if cancel != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	if cancel == nil {
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
	cancel(cause)
}
