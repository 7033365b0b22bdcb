package jsonsocket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const bound = 1 << 20

type message struct {
	ID     int
	Text   string
	Folder bool
}

// memory is a connection to buffers.
type memory struct {
	net.Conn
	in    io.Reader
	out   bytes.Buffer
	until time.Time
}

func (m *memory) Read(b []byte) (int, error)             { return m.in.Read(b) }
func (m *memory) Write(b []byte) (int, error)            { return m.out.Write(b) }
func (m *memory) SetWriteDeadline(until time.Time) error { m.until = until; return nil }

func receive(r io.Reader) (m message, err error) {
	err = NewConn(&memory{in: r}, bound).Receive(&m)
	return m, err
}

func TestLinesArriveAsSent(t *testing.T) {
	sent := []message{{ID: 1}, {Text: "a\nb\u2028"}, {Text: strings.Repeat("x", bound-100)}}
	var wire memory
	out := NewConn(&wire, bound)
	out.WriteWait = time.Minute
	for _, m := range sent {
		if err := out.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if wait := time.Until(wire.until); wait <= 0 || wait > time.Minute {
		t.Errorf("a write has %s", wait)
	}
	if n := bytes.Count(wire.out.Bytes(), []byte("\n")); n != len(sent) {
		t.Fatalf("%d lines for %d messages", n, len(sent))
	}
	in := NewConn(&memory{in: iotest.HalfReader(io.MultiReader(strings.NewReader("\n\r\n"), &wire.out))}, bound)
	for _, want := range sent {
		var got message
		if err := in.Receive(&got); err != nil || got != want {
			t.Errorf("sent %.100q, received %.100q, %v", want.Text, got.Text, err)
		}
	}
	if err := in.Receive(new(message)); err != io.EOF {
		t.Errorf("after the last line: %v", err)
	}
	if err := out.Send(message{}, nil); err == nil {
		t.Error("a file was sent to a buffer")
	}
	if in.AcceptFiles() {
		t.Error("a buffer carries files")
	}
}

func TestInvalidLines(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":              "hello\n",
		"an array":             `[{"ID":1}]` + "\n",
		"null":                 "null\n",
		"a number":             "7\n",
		"cut off":              `{"Text":"10`,
		"two in one line":      `{"ID":1} {"ID":1}` + "\n",
		"a wrong type":         `{"ID":"8080"}` + "\n",
		"a number too great":   `{"ID":99999999999999999999}` + "\n",
		"longer than the most": `{"Text":"` + strings.Repeat("a", bound) + `"}` + "\n",
		"never ends":           strings.Repeat("{", bound+1),
		"deep":                 `{"later":` + strings.Repeat("[", 20000) + "\n",
	} {
		if _, err := receive(strings.NewReader(line)); !errors.Is(err, ErrLine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken pipe")
	if _, err := receive(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a broken connection: %v", err)
	}
	var wire memory
	if err := NewConn(&wire, bound).Send(message{Text: strings.Repeat("a", bound)}); !errors.Is(err, ErrLine) || wire.out.Len() != 0 {
		t.Errorf("a line that is too long: %v, %d bytes written", err, wire.out.Len())
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte("{\"ID\":1}\n\n[]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := NewConn(&memory{in: bytes.NewReader(b)}, bound)
		for {
			var m message
			if err := c.Receive(&m); err != nil {
				if err != io.EOF && !errors.Is(err, ErrLine) {
					t.Fatalf("an error of no kind: %v", err)
				}
				return
			}
		}
	})
}
