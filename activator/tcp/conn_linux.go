package tcp

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Conn is a TCP connection. Its methods may be called concurrently, as those of any net.Conn.
type Conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
	asking  asking                // of the Ask under way, which has in
	asked   func(fd uintptr) bool // ask, made once
}

type asking struct {
	request []byte
	sent    int  // bytes of it
	came    bool // something was read, or its end
}

// transfer is the state of one direction.
type transfer struct {
	mu    sync.Mutex            // held for one Read or Write
	call  func(fd uintptr) bool // receive or send, made once
	bytes []byte
	n     int // of bytes, done
	err   syscall.Errno
}

// Wrap returns c as a Conn where it is a TCP connection, else c itself.
func Wrap(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	w := &Conn{TCPConn: t, raw: raw}
	w.in.call, w.out.call, w.asked = w.receive, w.send, w.ask
	return w
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Read(p)
	}
	n, err := c.in.run(p, c.raw.Read)
	switch {
	case err != nil:
		return 0, c.fail("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.out.run(p, c.raw.Write)
	if err != nil {
		return n, c.fail("write", err)
	}
	return n, nil
}

// Ask sends a request and reads from its answer into p, as a Write and a Read do. With early
// nothing was sent: n and err are of what was there to be read before. It sends what the
// kernel takes at once, and reads only where that is all. No Write may run beside it.
func (c *Conn) Ask(request, p []byte) (sent, n int, early bool, err error) {
	t := &c.in
	t.mu.Lock()
	defer t.mu.Unlock()
	c.asking = asking{request: request}
	n, err = t.do(p, c.raw.Read, c.asked)
	sent, early = c.asking.sent, c.asking.came && c.asking.sent == 0
	switch came := c.asking.came; {
	case err != nil:
		err = c.fail("ask", err)
	case came && n == 0:
		err = io.EOF
	}
	c.asking.request = nil
	return sent, n, early, err
}

// ask is a step of Ask; false: it waits for the answer. The wait ends with all that comes
// behind its beginning, which the first receive is behind.
func (c *Conn) ask(fd uintptr) bool {
	a := &c.asking
	if a.sent == len(a.request) {
		a.came = c.receive(fd)
		return a.came
	}
	if a.came = c.receive(fd); a.came {
		return true
	}
	a.sent, c.in.err = sendPart(fd, a.request)
	return c.in.err != 0 || a.sent < len(a.request)
}

func (t *transfer) run(p []byte, wait func(func(uintptr) bool) error) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(p, wait, t.call)
}

// do has wait call step until it returns true.
func (t *transfer) do(p []byte, wait func(func(uintptr) bool) error, step func(uintptr) bool) (n int, err error) {
	t.bytes, t.n, t.err = p, 0, 0
	err = wait(step)
	if t.bytes = nil; t.err != 0 {
		err = os.NewSyscallError("socket", t.err)
	}
	return t.n, err
}

// fail is an error as package net has it.
func (c *Conn) fail(op string, err error) error {
	if e, ok := err.(*net.OpError); ok {
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// receive reads once; false: nothing is there yet.
func (c *Conn) receive(fd uintptr) bool {
	t := &c.in
	for {
		n, err := receiveOnce(fd, t.bytes)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			t.n = n
		}
		t.err = err
		return true
	}
}

// send writes until all is written; false: the buffer of the kernel is full.
func (c *Conn) send(fd uintptr) bool {
	t := &c.out
	n := 0
	n, t.err = sendPart(fd, t.bytes[t.n:])
	t.n += n
	return t.err != 0 || t.n == len(t.bytes)
}

// sendPart writes as much as the kernel takes at once.
func sendPart(fd uintptr, p []byte) (sent int, err syscall.Errno) {
	for sent < len(p) {
		n, err := sendOnce(fd, p[sent:])
		switch err {
		case 0:
			sent += n
		case syscall.EINTR:
		case syscall.EAGAIN:
			return sent, 0
		default:
			return sent, err
		}
	}
	return sent, 0
}
