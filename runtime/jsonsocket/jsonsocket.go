// Package jsonsocket sends and receives lines of JSON, and open files beside them, over unix
// sockets, at both ends of a connection; it defines no messages and makes no remote calls. Lines
// are bounded, writes have a deadline, and socket paths have any length.
package jsonsocket

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// ErrLine reports a line that is no JSON object or longer than the bound. The connection
// cannot be used for reading any more.
var ErrLine = errors.New("line is not JSON or too long")

// maxFiles bounds the files of one read; a line has at most one.
const maxFiles = 4

// Conn sends and receives lines on a connection. Several goroutines may send lines without
// files at a time; one receives.
type Conn struct {
	net.Conn
	// WriteWait bounds each Send; 0: the connection's own deadline does.
	WriteWait time.Duration

	max   int // bytes of a line, in both directions
	lines *bufio.Scanner
	files []*os.File // received, in order
}

// NewConn returns a Conn whose lines have at most max bytes. Files that come with lines are
// dropped by the kernel; see AcceptFiles.
func NewConn(conn net.Conn, max int) *Conn {
	c := &Conn{Conn: conn, max: max}
	c.readFrom(conn)
	return c
}

func (c *Conn) readFrom(r io.Reader) {
	c.lines = bufio.NewScanner(r)
	c.lines.Buffer(nil, c.max)
}

// ListenPublic listens on a socket that every user may dial, in place of an earlier one: a
// client reaches either that, which has no listener any more, or this one.
func ListenPublic(path string) (*net.UnixListener, error) {
	temporary := path + "~"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(temporary, 0o666); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func Dial(ctx context.Context, path string, max int) (*Conn, error) {
	short, done, err := ShortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	return NewConn(conn, max), nil
}

// Send writes v as one line. The files go with its first byte; the caller still closes
// them. A line beyond the bound is ErrLine, and nothing is written.
func (c *Conn) Send(v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) >= c.max {
		return fmt.Errorf("a line of %d bytes, of %d at most: %w", len(b), c.max, ErrLine)
	}
	b = append(b, '\n')
	if c.WriteWait > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(c.WriteWait)); err != nil {
			return err
		}
	}
	n := 0
	if len(files) > 0 {
		conn, ok := c.Conn.(*net.UnixConn)
		if !ok {
			return errors.New("files are sent over a unix socket only")
		}
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		if n, _, err = conn.WriteMsgUnix(b, syscall.UnixRights(fds...), nil); err != nil {
			return err
		}
	}
	if n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// Receive decodes the next line, which is a JSON object, into v. It skips empty lines.
// io.EOF is an end between lines; ErrLine is invalid input.
func (c *Conn) Receive(v any) error {
	for c.lines.Scan() {
		line := bytes.TrimSpace(c.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if line[0] != '{' {
			return fmt.Errorf("%w: it begins with %.20q", ErrLine, line)
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("%w: %w", ErrLine, err)
		}
		return nil
	}
	switch err := c.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: it is longer than %d bytes", ErrLine, c.max)
	case err != nil:
		return err
	}
	return io.EOF
}

// AcceptFiles receives files from now on, before the first Receive. It reports whether the
// connection can; CloseFiles ends it.
func (c *Conn) AcceptFiles() bool {
	conn, ok := c.Conn.(*net.UnixConn)
	if ok {
		c.readFrom(fileReader{conn, &c.files})
	}
	return ok
}

// File returns the file of the last line received, if one came with it. The caller
// closes it.
func (c *Conn) File() (*os.File, error) {
	if len(c.files) == 0 {
		return nil, fmt.Errorf("%w: its open file did not come", ErrLine)
	}
	f := c.files[0]
	c.files = c.files[1:]
	return f, nil
}

// CloseFiles closes the files that File did not return.
func (c *Conn) CloseFiles() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// fileReader reads bytes, and queues the files that come with them.
type fileReader struct {
	conn  *net.UnixConn
	files *[]*os.File
}

func (r fileReader) Read(b []byte) (int, error) {
	control := make([]byte, syscall.CmsgSpace(4*maxFiles))
	n, k, flags, _, err := r.conn.ReadMsgUnix(b, control)
	if err != nil {
		return n, err
	}
	all, err := syscall.ParseSocketControlMessage(control[:k])
	if err != nil {
		return n, err
	}
	for i := range all {
		fds, err := syscall.ParseUnixRights(&all[i])
		if err != nil {
			continue // no descriptors
		}
		for _, fd := range fds {
			*r.files = append(*r.files, os.NewFile(uintptr(fd), "received"))
		}
	}
	switch {
	case flags&syscall.MSG_CTRUNC != 0 || len(*r.files) > 2*maxFiles:
		return n, fmt.Errorf("more than %d files are waiting for their lines", maxFiles)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
