package httpserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	onePiece        = 64 << 10 // a write deadline covers at most this much
	closeDelay      = 2 * time.Second
	closeDrainBytes = 64 << 20
)

// output is what a client is sent. Every write has a deadline.
type output struct {
	conn     net.Conn
	timeout  time.Duration // of each write of up to onePiece
	until    time.Time     // the write deadline as it stands
	held     []byte        // what waits for the bytes behind it
	holdEnd  bool          // the stream has ended: its last bytes and its end go out together
	holdMore bool          // the stream has more bytes at once: they go out with these
}

// Write sends p, or holds it back for what follows it.
func (o *output) Write(p []byte) (int, error) {
	if !o.holdEnd && !o.holdMore && len(o.held) == 0 {
		return o.write(p)
	}
	o.held = append(o.held, p...)
	whole := !o.holdMore || len(o.held) >= onePiece/2
	if o.holdEnd {
		whole = bytes.HasSuffix(o.held, []byte("0\r\n\r\n"))
	}
	if whole {
		if err := o.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush sends the bytes held back for what follows them.
func (o *output) flush() error {
	if len(o.held) == 0 {
		return nil
	}
	_, err := o.write(o.held)
	if o.held = o.held[:0]; cap(o.held) > onePiece {
		o.held = nil
	}
	return err
}

// write sends p in pieces, each under a deadline of its own.
func (o *output) write(p []byte) (n int, err error) {
	for len(p) > 0 {
		now, d := time.Now(), o.timeout
		if o.until.Sub(now) < d {
			o.until = now.Add(d + d/8) // not per write
			o.conn.SetWriteDeadline(o.until)
		}
		m, err := o.conn.Write(p[:min(len(p), onePiece)])
		n += m
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				o.resetOnClose()
			}
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}

// resetOnClose makes the coming close a TCP reset: for bodies that end with the connection, and
// for clients that stopped reading, to which the kernel would go on sending for minutes.
func (o *output) resetOnClose() {
	if t, ok := withoutTLS(o.conn).(interface{ SetLinger(int) error }); ok {
		t.SetLinger(0)
	}
}

// HalfClose sends FIN and waits a moment for the client to end the connection: closing
// it over unread bytes would reset it, and what was sent last be lost.
func HalfClose(c net.Conn) { halfCloseAndDrain(c, closeDrainBytes, closeDelay) }

// halfCloseAndDrain reads and drops at most drain bytes while it waits, for at most d.
func halfCloseAndDrain(c net.Conn, drain int64, d time.Duration) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(d)
	c.SetReadDeadline(end)
	if n, _ := io.CopyN(io.Discard, c, drain); n == drain {
		time.Sleep(time.Until(end)) // the client may read the answer; what it sends stays in its socket
	}
}
