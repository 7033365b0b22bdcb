package nodeloader

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// IdentifyPod is the uid of the pod that dialled.
func IdentifyPod(conn *net.UnixConn) (uid string, err error) {
	_, uid, err = identifyPeer(conn)
	return uid, err
}

// IdentifyAny is the uid of a pod, or a name for a process outside any.
func IdentifyAny(conn *net.UnixConn) (uid string, err error) {
	pid, uid, err := identifyPeer(conn)
	if errors.Is(err, errNoPod) {
		return "local-" + strconv.Itoa(pid), nil
	}
	return uid, err
}

func identifyPeer(conn *net.UnixConn) (pid int, uid string, err error) {
	p, err := peerProcess(conn)
	if err != nil {
		return 0, "", err
	}
	defer p.close()
	if p.pid == 0 {
		return 0, "", errors.New("its process cannot be seen from here: the loader's pod needs hostPID")
	}
	text, err := cgroupOf(strconv.Itoa(p.pid))
	if err != nil {
		return 0, "", fmt.Errorf("process %d: %w", p.pid, err)
	}
	self, err := cgroupOf("self")
	if err != nil {
		return 0, "", err
	}
	// Only now: while the process lives its number is nobody else's.
	if !p.alive() {
		return 0, "", fmt.Errorf("process %d has ended", p.pid)
	}
	if uid, err = podOf(text, self); err != nil {
		return p.pid, "", fmt.Errorf("process %d: %w", p.pid, err)
	}
	return p.pid, uid, nil
}

// peer is the one that dialled.
type peer struct {
	pid  int
	fd   int // refers to it for as long as it is open; -1 where the kernel has none
	conn syscall.RawConn
}

func peerProcess(conn *net.UnixConn) (peer, error) {
	p := peer{fd: -1}
	raw, err := conn.SyscallConn()
	if err != nil {
		return p, err
	}
	p.conn = raw
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("its credentials: %w", err)
			return
		}
		p.pid = int(cred.Pid)
		switch got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); {
		case err == nil:
			p.fd = got
			unix.CloseOnExec(got)
		case err != unix.ENOPROTOOPT: // the kernel knows them, and has none of it any more
			failed = fmt.Errorf("process %d has ended", p.pid)
		}
	}); err != nil {
		return p, err
	}
	return p, failed
}

func (p peer) alive() bool {
	if p.fd >= 0 {
		return !hasEvents(p.fd, unix.POLLIN) // readable once it has ended
	}
	up := false
	err := p.conn.Control(func(fd uintptr) { up = !hasEvents(int(fd), unix.POLLRDHUP) })
	return err == nil && up
}

func (p peer) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// hasEvents reports whether events have come, or an end.
func hasEvents(fd int, events int16) bool {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || n > 0
	}
}

func cgroupOf(process string) (string, error) {
	f, err := os.Open("/proc/" + process + "/cgroup")
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return string(b), err
}
