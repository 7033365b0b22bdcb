package httpserver

import (
	"runtime/debug"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// Upgraded is the connection of a client whose request asked for a WebSocket. Each write
// has the server's deadline; reads have none. One goroutine at a time may read, and one
// write.
type Upgraded struct {
	w        *conn
	leftover []byte // came behind the head
	ctx      *Context
}

// upgrade gives the connection to f, and ends it behind f.
func (c *conn) upgrade(f func(*Upgraded)) {
	u := &Upgraded{w: c, leftover: append([]byte(nil), c.in.buf[c.in.r:c.in.w]...)}
	c.state.setPhase(upgraded)
	u.ctx = c.state.context()
	c.body.large, c.body.grown, c.head = nil, 0, head{} // a socket may live for days
	c.body.reset()
	c.in.buf, c.in.r, c.in.w = nil, 0, 0
	c.in.SetReadDeadline(time.Time{})
	defer func() {
		if p := recover(); p != nil {
			c.s.o.Logger.Error("an upgraded connection panicked", "panic", p, "stack", string(debug.Stack()))
		}
		c.Close()
	}()
	f(u)
}

// Read returns the bytes that came behind the head first.
func (u *Upgraded) Read(p []byte) (int, error) {
	if len(u.leftover) > 0 {
		n := copy(p, u.leftover)
		if u.leftover = u.leftover[n:]; len(u.leftover) == 0 {
			u.leftover = nil
		}
		return n, nil
	}
	return u.w.Conn.Read(p)
}

// Refuse sends the answer of an error; the connection ends behind it.
func (u *Upgraded) Refuse(e *openai.Error) {
	var res Response
	res.Refuse(e)
	u.Write(appendLastAnswer(nil, &res, u.w.s.date.now(time.Now())))
}

// Write sends p; a client that does not read it in time is reset.
func (u *Upgraded) Write(p []byte) (int, error) { return u.w.out.write(p) }

// Close ends the connection, and a Read and a Write that wait. It may be called again.
func (u *Upgraded) Close() error { return u.w.Conn.Close() }

// Context ends with [ErrDraining] when the drain deadline has passed, and with the
// connection.
func (u *Upgraded) Context() *Context { return u.ctx }

// OnDrain has f called, in a goroutine of its own, when the server begins to shut down: at
// once where it has. It is called once, before anything else.
func (u *Upgraded) OnDrain(f func()) {
	u.w.state.setOnDrain(f)
}
