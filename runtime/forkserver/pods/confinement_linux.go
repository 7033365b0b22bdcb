package pods

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// confinement is everything that confines a process, as the kernel reports it from
// outside.
type confinement struct {
	status      map[string]string // lines of /proc/PID/status
	spaces      map[string]string // what /proc/PID/ns/NAME leads to
	groups      string            // /proc/PID/cgroup
	limits      string            // /proc/PID/limits
	oom         int
	personality string            // personality
	labels      map[string]string // by name below attr
	nice        int
	policy      string // and its priority
	io          int
	root        [2]uint64 // device and inode
	parent      int
	count       int      // of filters
	filters     [][]byte // oldest first, once they were read
	flags       []uint32
}

var comparedStatus = []string{
	"Uid", "Gid", "Groups", "Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
	"Seccomp_filters", "Cpus_allowed", "Mems_allowed",
}

var allNamespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}

// readConfinement reads the confinement of a process. The caller checks that the process
// was the same all the while.
func readConfinement(pid int) (s confinement, err error) {
	in := "/proc/" + strconv.Itoa(pid) + "/"
	file := func(name string) string {
		if err != nil {
			return ""
		}
		var b []byte
		b, err = os.ReadFile(in + name)
		return string(b)
	}
	s.status = parseStatus([]byte(file("status")))
	s.groups, s.limits, s.personality = file("cgroup"), file("limits"), strings.TrimSpace(file("personality"))
	oom := file("oom_score_adj")
	if err != nil {
		return s, err
	}
	if s.oom, err = strconv.Atoi(strings.TrimSpace(oom)); err != nil {
		return s, err
	}
	if n := s.status["Seccomp_filters"]; n != "" {
		if s.count, err = strconv.Atoi(n); err != nil {
			return s, err
		}
	}
	process, err := procfs.NewProc(pid)
	if err != nil {
		return s, err
	}
	stat, err := process.Stat()
	if err != nil {
		return s, err
	}
	s.parent, s.nice, s.policy = stat.PPID, stat.Nice, fmt.Sprint(stat.Policy, stat.RTPriority)
	if s.io, err = ioprio(pid); err != nil {
		return s, err
	}
	s.spaces = map[string]string{}
	for _, ns := range allNamespaces {
		to, err := os.Readlink(in + "ns/" + ns)
		if errors.Is(err, os.ErrNotExist) {
			continue // older than this kind
		}
		if err != nil {
			return s, err
		}
		s.spaces[ns] = to
	}
	s.labels = map[string]string{}
	for _, name := range []string{"current", "apparmor/current"} {
		if b, err := os.ReadFile(in + "attr/" + name); err == nil {
			s.labels[name] = strings.TrimRight(string(b), "\x00\n")
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(in+"root", &st); err != nil {
		return s, &os.PathError{Op: "stat", Path: in + "root", Err: err}
	}
	s.root = [2]uint64{st.Dev, st.Ino}
	return s, nil
}

// parseStatus is /proc/PID/status by line.
func parseStatus(b []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			out[k] = strings.Join(strings.Fields(v), " ")
		}
	}
	return out
}

func parseHex(s string) (uint64, error) { return strconv.ParseUint(s, 16, 64) }

// firstDifference names the first thing in which a child is not what its pod's process is.
// In one it may be stricter: it may be killed sooner for want of memory.
func firstDifference(pod, child confinement) error {
	differs := func(property string, a, b any) error { return fmt.Errorf("%s: %v, and the pod's %v", property, b, a) }
	for _, k := range comparedStatus {
		if pod.status[k] != child.status[k] {
			return differs(k, pod.status[k], child.status[k])
		}
	}
	for _, ns := range allNamespaces {
		if pod.spaces[ns] != child.spaces[ns] {
			return differs("namespace "+ns, pod.spaces[ns], child.spaces[ns])
		}
	}
	switch {
	case pod.groups != child.groups:
		return differs("control group", pod.groups, child.groups)
	case pod.limits != child.limits:
		return differs("limits", pod.limits, child.limits)
	case child.oom < pod.oom:
		return differs("oom_score_adj", pod.oom, child.oom)
	case pod.personality != child.personality:
		return differs("personality", pod.personality, child.personality)
	case !maps.Equal(pod.labels, child.labels):
		return differs("security label", pod.labels, child.labels)
	case pod.nice != child.nice:
		return differs("nice", pod.nice, child.nice)
	case pod.policy != child.policy:
		return differs("scheduler", pod.policy, child.policy)
	case pod.io != child.io:
		return differs("priority of I/O", pod.io, child.io)
	case pod.root != child.root:
		return differs("root", pod.root, child.root)
	case !slices.EqualFunc(pod.filters, child.filters, bytes.Equal):
		return errors.New("seccomp filters: others than the pod's")
	case !slices.Equal(pod.flags, child.flags):
		return differs("seccomp flags", pod.flags, child.flags)
	}
	return nil
}

func ioprio(pid int) (int, error) {
	const process = 1
	n, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, process, uintptr(pid), 0)
	if e != 0 {
		return 0, fmt.Errorf("ioprio: %w", e)
	}
	return int(n), nil
}
