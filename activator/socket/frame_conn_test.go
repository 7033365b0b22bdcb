package socket

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// recordingConn records writes.
type recordingConn struct {
	writes []string
	closed bool
	err    error
}

func (c *recordingConn) Read([]byte) (int, error) { return 0, errors.New("nothing is sent") }
func (c *recordingConn) Close() error             { c.closed = true; return nil }

func (c *recordingConn) Write(p []byte) (int, error) {
	c.writes = append(c.writes, string(p))
	return len(p), c.err
}

// TestFrameConn: what is written while the connection holds goes out in one write, in order,
// and never waits beyond release or beyond a bound.
func TestFrameConn(t *testing.T) {
	large := strings.Repeat("x", maxHeld)
	to := &recordingConn{}
	c := frameConn{ReadWriteCloser: to}
	write := func(texts ...string) {
		for _, text := range texts {
			if n, err := c.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	write("a", "b")
	c.hold()
	write("c", "d")
	if len(to.writes) != 2 {
		t.Errorf("written while it holds: %q", to.writes)
	}
	c.release()
	c.release()
	write("e")
	c.hold()
	write("f", large, "g")
	c.release()
	if want := []string{"a", "b", "cd", "e", "f", large, "g"}; !slices.Equal(to.writes, want) {
		t.Errorf("%.80q, want %.80q", to.writes, want)
	}
	c.hold()
	write("h")
	to.err = errors.New("reset")
	if c.release(); !to.closed || c.held != nil {
		t.Error("a failed write does not end the connection")
	}
}
