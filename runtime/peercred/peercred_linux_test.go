package peercred

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// dialSelf returns both ends of a connection of this process to itself.
func dialSelf(t *testing.T) (client net.Conn, conn *net.UnixConn) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("unix", path); err != nil {
		t.Fatal(err)
	}
	if conn, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); conn.Close() })
	return client, conn
}

func TestOf(t *testing.T) {
	_, conn := dialSelf(t)
	p, err := Of(conn)
	if err != nil || p.PID != os.Getpid() || !p.Alive() {
		t.Fatal(p, err)
	}
	p.Close()
}

// TestAliveWithoutPIDFD: on kernels before 6.5 a connection that was hung up is that
// of a process that has ended.
func TestAliveWithoutPIDFD(t *testing.T) {
	client, conn := dialSelf(t)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	p := Peer{PID: os.Getpid(), fd: -1, conn: raw}
	if p.Held() || !p.Alive() {
		t.Error("an open connection is not that of a live process")
	}
	client.Close()
	if p.Alive() {
		t.Error("a connection that was hung up is that of a live process")
	}
}
