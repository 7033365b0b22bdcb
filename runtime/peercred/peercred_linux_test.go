package peercred

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// dial returns both ends of a connection of this process to itself.
func dial(t *testing.T) (far net.Conn, conn *net.UnixConn) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("unix", path); err != nil {
		t.Fatal(err)
	}
	if conn, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close(); conn.Close() })
	return far, conn
}

func TestOf(t *testing.T) {
	_, conn := dial(t)
	p, err := Of(conn)
	if err != nil || p.PID != os.Getpid() || !p.Alive() {
		t.Fatal(p, err)
	}
	p.Close()
}

// TestAliveWithoutPidfd: on kernels before 6.5 a connection that was hung up is that
// of a process that has ended.
func TestAliveWithoutPidfd(t *testing.T) {
	far, conn := dial(t)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	p := Peer{PID: os.Getpid(), fd: -1, conn: raw}
	if p.Held() || !p.Alive() {
		t.Error("an open connection is not that of a live process")
	}
	far.Close()
	if p.Alive() {
		t.Error("a connection that was hung up is that of a live process")
	}
}
