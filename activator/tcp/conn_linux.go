package tcp

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Conn is a TCP connection. Its methods may be called concurrently, as those of any net.Conn.
type Conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
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
	w.in.call, w.out.call = w.receive, w.send
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

func (t *transfer) run(p []byte, wait func(func(uintptr) bool) error) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes, t.n, t.err = p, 0, 0
	err = wait(t.call)
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
		n, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&t.bytes[0])), uintptr(len(t.bytes)), 0, 0, 0)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			t.n = int(n)
		}
		t.err = err
		return true
	}
}

// send writes until all is written; false: the buffer of the kernel is full.
func (c *Conn) send(fd uintptr) bool {
	t := &c.out
	for t.n < len(t.bytes) {
		rest := t.bytes[t.n:]
		n, _, err := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)),
			syscall.MSG_NOSIGNAL, 0, 0)
		switch err {
		case 0:
			t.n += int(n)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.err = err
			return true
		}
	}
	return true
}
