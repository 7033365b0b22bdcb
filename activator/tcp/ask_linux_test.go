package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/testkit"
)

// Ask reads the answer to its request, and nothing is sent where something is there before.
func TestAsk(t *testing.T) {
	large := bytes.Repeat([]byte("x"), 64<<20)
	for _, x := range []struct {
		name    string
		before  func(engine net.Conn) // before the request
		request []byte
		answer  string // to the request; "": the end

		early  bool
		read   string
		err    error
		partly bool // less than the request was sent
	}{
		{name: "an answer", request: []byte("question"), answer: "answer", read: "answer"},
		{name: "no answer", request: []byte("question"), err: io.EOF},
		{name: "bytes before", before: func(e net.Conn) { e.Write([]byte("stray")) }, request: []byte("question"), early: true, read: "stray"},
		{name: "the end before", before: func(e net.Conn) { e.Close() }, request: []byte("question"), early: true, err: io.EOF},
		{name: "more than the kernel takes", request: large, partly: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			one, engine := pair(t)
			defer one.Close()
			defer engine.Close()
			c := one.(*Conn)
			if x.before != nil {
				x.before(engine)
				testkit.Eventually(t, "it is there", func() bool {
					there := false
					c.raw.Control(func(fd uintptr) { there = isReadable(int(fd)) })
					return there
				})
			} else if !x.partly {
				go func() {
					io.ReadFull(engine, make([]byte, len(x.request)))
					if x.answer == "" {
						engine.Close()
					}
					engine.Write([]byte(x.answer))
				}()
			}
			p := make([]byte, 100)
			sent, n, early, err := c.Ask(x.request, p)
			if string(p[:n]) != x.read || early != x.early || !errors.Is(err, x.err) {
				t.Errorf("%q, early %v, %v", p[:n], early, err)
			}
			if whole := len(x.request); !x.early && !x.partly && sent != whole || x.early && sent != 0 ||
				x.partly && (sent == 0 || sent >= whole) {
				t.Errorf("%d of %d bytes were sent", sent, len(x.request))
			}
		})
	}
}

// An Ask ends at the read deadline, and allocates nothing.
func TestAskWaits(t *testing.T) {
	one, engine := pair(t)
	defer one.Close()
	defer engine.Close()
	c := one.(*Conn)
	q, p := []byte("question"), make([]byte, 100)
	one.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if sent, _, early, err := c.Ask(q, p); !errors.Is(err, os.ErrDeadlineExceeded) || early || sent != len(q) {
		t.Errorf("%d bytes were sent, early %v, %v", sent, early, err)
	}
	one.SetReadDeadline(time.Time{})
	io.ReadFull(engine, p[:len(q)])
	go func() {
		b := make([]byte, 100)
		for {
			n, err := engine.Read(b)
			if err != nil {
				return
			}
			engine.Write(b[:n])
		}
	}()
	if n := testing.AllocsPerRun(100, func() {
		if _, n, _, err := c.Ask(q, p); n != len(q) || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func isReadable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(p, 0)
	return n == 1
}
