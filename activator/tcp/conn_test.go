package tcp

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/thaw-dev/thaw/testkit"
)

// pair are the two ends of a connection over loopback, both wrapped.
func pair(t testing.TB) (one, other net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if one, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if other, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return Wrap(one), Wrap(other)
}

// The suite of package net's own connections.
func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (one, other net.Conn, stop func(), err error) {
		one, other = pair(t)
		return one, other, func() { one.Close(); other.Close() }, nil
	})
}

// A write larger than all buffers waits for its reader, and ends at its deadline with the
// number of bytes that were sent.
func TestLargeWrite(t *testing.T) {
	one, other := pair(t)
	defer one.Close()
	defer other.Close()
	sent := make([]byte, 32<<20)
	rand.Read(sent)
	done := make(chan error, 1)
	go func() {
		n, err := one.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		done <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(other, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%v, equal %v", err, bytes.Equal(got, sent))
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	one.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	n, err := one.Write(sent)
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == len(sent) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Errors are those of package net: their kinds, and what they name.
func TestErrors(t *testing.T) {
	one, other := pair(t)
	defer one.Close()
	other.(interface{ SetLinger(int) error }).SetLinger(0)
	other.Close() // a reset
	_, err := one.Read(make([]byte, 1))
	e, ok := errors.AsType[*net.OpError](err)
	if !errors.Is(err, syscall.ECONNRESET) || !ok || e.Op != "read" || e.Addr.String() != one.RemoteAddr().String() {
		t.Errorf("read after a reset: %v", err)
	}
	testkit.Eventually(t, "writing fails", func() bool {
		_, err = one.Write([]byte("x"))
		return err != nil
	})
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write after a reset: %v", err)
	}
	one.Close()
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	if _, err := one.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
}

// Reading and writing allocate nothing.
func TestAllocations(t *testing.T) {
	one, other := pair(t)
	defer one.Close()
	defer other.Close()
	p := make([]byte, 10)
	if n := testing.AllocsPerRun(100, func() {
		one.Write(p)
		other.Read(p)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
