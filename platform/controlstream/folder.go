package controlstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Checkpoint folders are sent over the socket as open descriptors: a pod reaches the files
// it was given and nothing else, because the rest of the store is closed to its user. The
// descriptor goes with the first byte of the line that announces it (Staged.Folder).

// maxFolders bounds the descriptors of one read; a line has at most one.
const maxFolders = 4

// WriteLineWith writes v as one line, with f's descriptor. The caller still closes f.
func WriteLineWith(conn *net.UnixConn, v any, f *os.File) error {
	b, err := encodeLine(v)
	if err != nil {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	var sent error
	if err := raw.Control(func(fd uintptr) {
		n, _, sent = conn.WriteMsgUnix(b, syscall.UnixRights(int(fd)), nil)
	}); err != nil {
		return err
	}
	if sent == nil && n < len(b) {
		_, sent = conn.Write(b[n:])
	}
	return sent
}

// NewFolderLines reads lines and open folders from a connection. Close closes the folders
// that Folder did not return.
func NewFolderLines(conn *net.UnixConn) *Lines {
	f := &folders{conn: conn}
	l := NewLines(f)
	l.folders = f
	return l
}

// Folder returns the folder of the last line read, if that line announced one. The caller
// closes it.
func (l *Lines) Folder() (*os.File, error) {
	if l.folders == nil || len(l.folders.got) == 0 {
		return nil, fmt.Errorf("%w: it speaks of a folder that did not come", ErrLine)
	}
	f := l.folders.got[0]
	l.folders.got = l.folders.got[1:]
	return f, nil
}

// Close closes folders that Folder did not return. It does not close the connection.
func (l *Lines) Close() {
	if l.folders == nil {
		return
	}
	for _, f := range l.folders.got {
		f.Close()
	}
	l.folders.got = nil
}

// folders reads bytes, and queues the descriptors that come with them.
type folders struct {
	conn *net.UnixConn
	got  []*os.File
}

func (f *folders) Read(b []byte) (int, error) {
	beside := make([]byte, syscall.CmsgSpace(4*maxFolders))
	n, k, flags, _, err := f.conn.ReadMsgUnix(b, beside)
	if err != nil {
		return n, err
	}
	all, err := syscall.ParseSocketControlMessage(beside[:k])
	if err != nil {
		return n, err
	}
	for i := range all {
		fds, err := syscall.ParseUnixRights(&all[i])
		if err != nil {
			continue // no descriptors
		}
		for _, fd := range fds {
			f.got = append(f.got, os.NewFile(uintptr(fd), "folder"))
		}
	}
	switch {
	case flags&syscall.MSG_CTRUNC != 0 || len(f.got) > 2*maxFolders:
		return n, errors.New("link: more folders come than anybody speaks of")
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
