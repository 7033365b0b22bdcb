package pods

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/peercred"
)

// stepTimeout bounds each step of a child on its way into a pod.
const stepTimeout = 4 * time.Second

// enteredNamespaces are the namespaces that are entered, in this order: the mount namespace
// last, by the child that is in all others.
var enteredNamespaces = []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}

// childPlan is the confinement that a child applies to itself. The child reads it; the
// interpreter does not.
type childPlan struct {
	UID      int               `json:"uid"`
	GID      int               `json:"gid"`
	Groups   []int             `json:"groups"`
	Umask    int               `json:"umask"`
	Bounding uint64            `json:"bounding"`
	Filters  []string          `json:"filters"`
	Flags    []uint32          `json:"flags"`
	Labels   map[string]string `json:"labels"` // to be written to attr/NAME
}

// forkInto forks the interpreter into the process that connected: the child gets the
// confinement of that process. It returns when the child has been inspected and released,
// with its process id as seen from here.
func (p *parent) forkInto(conn *net.UnixConn) (pid int, err error) {
	// Namespaces and tracing are of a thread, and so is this.
	err = onThread(func() error { pid, err = p.forkIntoOnThread(conn); return err })
	return pid, err
}

func (p *parent) forkIntoOnThread(conn *net.UnixConn) (int, error) {
	peer, err := dialingProcess(conn)
	if err != nil {
		return 0, err
	}
	defer peer.Close()
	if err := rootGroups(); err != nil {
		return 0, fmt.Errorf("the machine's groups: %w", err)
	}
	pod, err := readConfinement(peer.PID)
	if err != nil {
		return 0, fmt.Errorf("the process that asks: %w", err)
	}
	if err := checkConfined(pod); err != nil {
		return 0, err
	}
	if pod.filters, pod.flags, err = readSeccompFilters(peer.PID, pod.count); err != nil {
		return 0, fmt.Errorf("its seccomp filters cannot be read: %w", err)
	}
	if err := p.checkSameFiles(peer.PID); err != nil {
		return 0, err
	}
	fds, err := p.openPlan(peer.PID, pod)
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err != nil {
		return 0, err
	}
	// Only now is it known that all of it was read of that process, and of no later one.
	if !peer.Alive() {
		return 0, errGone
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// gate is the socket on which a child reports its steps and is told to go on. The
	// kernel adds the sender's credentials.
	gate := gate{pair[0]}
	f, err := conn.File() // another descriptor of it, that blocks
	if err == nil {
		err = unix.SetsockoptInt(gate.fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	if err != nil {
		unix.Close(pair[0])
		unix.Close(pair[1])
		return 0, err
	}
	forked := make(chan error, 1)
	go func() {
		forked <- p.fork(append([]int{int(f.Fd()), pair[1]}, fds...))
		f.Close()
		unix.Close(pair[1])
	}()
	pid, err := p.forkThroughGate(gate, peer, pod)
	unix.Close(gate.fd) // a child that waits there ends
	if e := <-forked; e != nil && (err == nil || errors.Is(err, errSilent)) {
		err = e
	}
	return pid, err
}

// forkThroughGate moves a child into the pod and inspects it.
func (p *parent) forkThroughGate(g gate, peer peercred.Peer, pod confinement) (int, error) {
	out, err := g.receive("out")
	if err != nil {
		return 0, err
	}
	if err := applyOuterConfinement(out, peer.PID, pod); err != nil {
		return 0, err
	}
	if err := g.send("in"); err != nil {
		return 0, err
	}
	pid, err := g.receive("here")
	if err != nil {
		return 0, err
	}
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, fmt.Errorf("the child: %w", err)
	}
	defer unix.Close(child)
	// The child may have been killed, and its id reused by now: the
	// descriptor is of the process that answers again.
	if err := g.send("go"); err != nil {
		return 0, err
	}
	if again, err := g.receive("here"); err != nil || again != pid {
		return 0, fmt.Errorf("the child is another: %d, was %d (%w)", again, pid, errors.Join(err, errSilent))
	}
	got, err := readConfinement(pid)
	if err == nil {
		got.filters, got.flags, err = readSeccompFilters(pid, got.count)
	}
	if err == nil {
		err = firstDifference(pod, got)
	}
	if err == nil {
		err = checkDescriptors(pid)
	}
	if err == nil && got.parent != peer.PID {
		err = fmt.Errorf("the child is process %d's, not that of the one that asked (%d)", got.parent, peer.PID)
	}
	if err == nil && !peercred.Alive(child) {
		err = errors.New("the child has ended")
	}
	if err == nil && !peer.Alive() {
		err = errGone
	}
	if err != nil {
		unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0)
		return 0, fmt.Errorf("the child is not what its pod is: %w", err)
	}
	return pid, g.send("go")
}

// checkConfined refuses processes that are not confined as thaw renders pods. They start
// their engines themselves.
func checkConfined(pod confinement) error {
	if slices.Contains(append(strings.Fields(pod.status["Uid"]), strings.Fields(pod.status["Gid"])...), "0") {
		return errors.New("its process is root's")
	}
	for _, c := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		if v, err := parseHex(pod.status[c]); err != nil || v != 0 {
			return fmt.Errorf("its process has capabilities (%s %s)", c, pod.status[c])
		}
	}
	if pod.status["NoNewPrivs"] != "1" {
		return errors.New("its process may gain privileges (allowPrivilegeEscalation)")
	}
	if pod.status["Seccomp"] != "2" || pod.count < 1 {
		return errors.New("its process has no seccomp profile")
	}
	own, err := readConfinement(os.Getpid())
	if err != nil {
		return err
	}
	if pod.spaces["user"] != own.spaces["user"] {
		return errors.New("its users are not the machine's own (hostUsers)")
	}
	if pod.spaces["time"] != own.spaces["time"] {
		return errors.New("its clocks are not the machine's own")
	}
	for _, ns := range []string{"pid", "mnt", "net", "ipc"} {
		if pod.spaces[ns] == own.spaces[ns] {
			return fmt.Errorf("it is in the machine's own %s namespace", ns)
		}
	}
	if n := strings.Fields(pod.status["NSpid"]); len(n) < 2 || n[len(n)-1] != "1" {
		return errors.New("it is not the first process of its container, which orphans belong to")
	}
	return nil
}

func (p *parent) openPlan(pid int, pod confinement) (fds []int, err error) {
	uid, err := singleID(pod.status["Uid"])
	if err != nil {
		return nil, fmt.Errorf("its users: %w", err)
	}
	gid, err := singleID(pod.status["Gid"])
	if err != nil {
		return nil, fmt.Errorf("its groups: %w", err)
	}
	x := childPlan{UID: uid, GID: gid, Groups: []int{}, Flags: pod.flags, Filters: []string{}}
	for g := range strings.FieldsSeq(pod.status["Groups"]) {
		n, err := strconv.Atoi(g)
		if err != nil {
			return nil, err
		}
		x.Groups = append(x.Groups, n)
	}
	umask, err := strconv.ParseUint(pod.status["Umask"], 8, 16)
	if err != nil {
		return nil, err
	}
	x.Umask = int(umask)
	if x.Bounding, err = parseHex(pod.status["CapBnd"]); err != nil {
		return nil, err
	}
	for _, f := range pod.filters {
		x.Filters = append(x.Filters, base64.StdEncoding.EncodeToString(f))
	}
	own, err := readConfinement(p.pid)
	if err != nil {
		return nil, err
	}
	x.Labels = labelWrites(own.labels, pod.labels)
	b, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("plan", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	fds = append(fds, fd)
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n < len(b) {
		return fds, fmt.Errorf("%d of %d bytes: %w", n, len(b), err)
	}
	for _, ns := range enteredNamespaces {
		if own.spaces[ns] == pod.spaces[ns] && ns != "mnt" {
			continue
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fds, fmt.Errorf("its %s namespace: %w", ns, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// labelWrites are the writes that take a label on.
func labelWrites(own, pod map[string]string) map[string]string {
	out := map[string]string{}
	for name, want := range pod {
		if want == own[name] {
			continue
		}
		if name == "apparmor/current" || name == "current" && strings.HasSuffix(want, ")") {
			// "cri-containerd.apparmor.d (enforce)"
			profile, _, _ := strings.Cut(want, " (")
			want = "changeprofile " + profile
			if _, both := pod["apparmor/current"]; both && name == "current" {
				continue // the same, under its older name
			}
		}
		out[name] = want
	}
	return out
}

// singleID is the id that all of a line of /proc/PID/status are.
func singleID(ids string) (int, error) {
	f := strings.Fields(ids)
	if len(f) != 4 || slices.Min(f) != slices.Max(f) {
		return 0, fmt.Errorf("they are several: %q", ids)
	}
	return strconv.Atoi(f[0])
}

// checkDescriptors checks that a child has its three descriptors, the connection and the
// gate, and no other.
func checkDescriptors(pid int) error {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	sockets := 0
	for _, e := range entries {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if err != nil {
			return err
		}
		switch n, _ := strconv.Atoi(e.Name()); {
		case n < 3 && to == os.DevNull:
		case n >= 3 && strings.HasPrefix(to, "socket:"):
			sockets++
		default:
			return fmt.Errorf("it has %s open as %d", to, n)
		}
	}
	if sockets != 2 {
		return fmt.Errorf("it has %d sockets", sockets)
	}
	return nil
}

// gate is where a child says how far it is, and is told to go on. The kernel says
// who speaks.
type gate struct{ fd int }

var errSilent = errors.New("no answer")

func (g gate) send(message string) error {
	return unix.Sendto(g.fd, []byte(message), unix.MSG_NOSIGNAL, nil)
}

// receive waits for one word, and returns the process that sent it.
func (g gate) receive(message string) (pid int, err error) {
	end := time.Now().Add(stepTimeout)
	for {
		left := time.Until(end)
		if left <= 0 {
			return 0, fmt.Errorf("the child: %w within %s", errSilent, stepTimeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err == unix.EINTR || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return 0, err
		}
		break
	}
	b, oob := make([]byte, 512), make([]byte, 128)
	n, on, _, _, err := unix.Recvmsg(g.fd, b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("the child: %w, and has ended", errSilent)
	}
	reply := string(b[:n])
	if reason, bad := strings.CutPrefix(reply, "!"); bad {
		return 0, fmt.Errorf("the child: %s", reason)
	}
	if reply != message {
		return 0, fmt.Errorf("the child sent %.20q, not %q", reply, message)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil {
		return 0, err
	}
	for i := range msgs {
		if c, err := unix.ParseUnixCredentials(&msgs[i]); err == nil && c.Pid > 1 {
			return int(c.Pid), nil
		}
	}
	return 0, errors.New("the child is none that can be seen")
}

var errGone = errors.New("the process that asked has ended")

// dialingProcess is the process that dialled. Its id is held until it is closed.
func dialingProcess(conn syscall.Conn) (peercred.Peer, error) {
	p, err := peercred.Of(conn)
	switch {
	case err != nil:
	case !p.Held():
		err = errors.New("the process that asks cannot be held: that takes Linux 6.5")
	case p.PID < 1:
		err = errors.New("the process that asks cannot be seen from here: hostPID is what it takes")
	}
	if err != nil {
		p.Close()
	}
	return p, err
}
