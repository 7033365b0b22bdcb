package nodeloader

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/thaw-dev/thaw/runtime/peercred"
)

// IdentifyPod returns the UID of the pod that dialled; an error for other processes.
func IdentifyPod(conn *net.UnixConn) (uid string, err error) {
	_, uid, err = identifyPeer(conn)
	return uid, err
}

// IdentifyAny returns the UID of the pod that dialled, or a name for any other process.
func IdentifyAny(conn *net.UnixConn) (uid string, err error) {
	pid, uid, err := identifyPeer(conn)
	if errors.Is(err, errNoPod) {
		return "local-" + strconv.Itoa(pid), nil
	}
	return uid, err
}

func identifyPeer(conn *net.UnixConn) (pid int, uid string, err error) {
	p, err := peercred.Of(conn)
	if err != nil {
		return 0, "", err
	}
	defer p.Close()
	if p.PID == 0 {
		return 0, "", errors.New("its process cannot be seen from here: the loader's pod needs hostPID")
	}
	text, err := cgroupOf(strconv.Itoa(p.PID))
	if err != nil {
		return 0, "", fmt.Errorf("process %d: %w", p.PID, err)
	}
	self, err := cgroupOf("self")
	if err != nil {
		return 0, "", err
	}
	// Checked last: while the process lives its id is not reused.
	if !p.Alive() {
		return 0, "", fmt.Errorf("process %d has ended", p.PID)
	}
	if uid, err = podOf(text, self); err != nil {
		return p.PID, "", fmt.Errorf("process %d: %w", p.PID, err)
	}
	return p.PID, uid, nil
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
