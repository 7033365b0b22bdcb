package pods

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// applyOuterConfinement moves a child that is still outside into a pod's control groups,
// and gives it the limits, the priority and the processors of the pod's process.
func applyOuterConfinement(child, of int, pod confinement) error {
	if err := intoGroups(child, pod.groups); err != nil {
		return fmt.Errorf("into the pod's control groups: %w", err)
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(of, &cpus); err != nil {
		return fmt.Errorf("its processors: %w", err)
	}
	if err := unix.SchedSetaffinity(child, &cpus); err != nil {
		return fmt.Errorf("its processors: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, child, pod.nice); err != nil {
		return fmt.Errorf("nice %d: %w", pod.nice, err)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOPRIO_SET, 1, uintptr(child), uintptr(pod.io)); e != 0 {
		return fmt.Errorf("its priority of I/O: %w", e)
	}
	// A lower value takes a capability that may be missing; a higher one is allowed.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", child), []byte(strconv.Itoa(pod.oom)), 0); err != nil &&
		!errors.Is(err, os.ErrPermission) {
		return err
	}
	limits, err := parseLimits(pod.limits)
	if err != nil {
		return err
	}
	for r, want := range limits {
		var have unix.Rlimit
		if err := unix.Prlimit(child, r, nil, &have); err != nil {
			return fmt.Errorf("limit %d: %w", r, err)
		}
		if want != have {
			if err := unix.Prlimit(child, r, &want, nil); err != nil {
				return fmt.Errorf("limit %d of %d: %w", r, want.Max, err)
			}
		}
	}
	return nil
}

// limitNames are the lines of /proc/PID/limits in the order of the kernel's numbers.
// It is the file that is read: prlimit of another user's process takes a capability
// of its own.
var limitNames = []string{
	"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set", "Max processes", "Max open files",
	"Max locked memory", "Max address space", "Max file locks", "Max pending signals", "Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout",
}

func parseLimits(text string) (all [16]unix.Rlimit, err error) {
	found := 0
	for line := range strings.Lines(text) {
		for r, name := range limitNames {
			rest, ok := strings.CutPrefix(line, name+" ")
			if !ok {
				continue
			}
			f := strings.Fields(rest)
			if len(f) < 2 {
				return all, fmt.Errorf("%q is no limit", line)
			}
			for i, to := range []*uint64{&all[r].Cur, &all[r].Max} {
				if *to = unix.RLIM_INFINITY; f[i] != "unlimited" {
					if *to, err = strconv.ParseUint(f[i], 10, 64); err != nil {
						return all, err
					}
				}
			}
			found++
		}
	}
	if found != len(limitNames) {
		return all, fmt.Errorf("%d of %d limits are told", found, len(limitNames))
	}
	return all, nil
}

// rootGroups has this thread see control groups as the machine's first process does.
func rootGroups() error {
	a, err := os.Readlink("/proc/1/ns/cgroup")
	if errors.Is(err, os.ErrPermission) {
		return nil // then it is as we see them
	}
	if err != nil {
		return err
	}
	if b, err := os.Readlink("/proc/thread-self/ns/cgroup"); err == nil && a == b {
		return nil
	}
	fd, err := unix.Open("/proc/1/ns/cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWCGROUP)
}

// intoGroups writes a process into the groups of a /proc/PID/cgroup, as the machine's
// first process has them mounted. A failed write shows when the child is inspected.
func intoGroups(pid int, groups string) error {
	first := "/proc/1"
	if _, err := os.Stat(first + "/root/"); errors.Is(err, os.ErrPermission) {
		first = "/proc/self"
	}
	mounts, err := readMounts(first)
	if err != nil {
		return err
	}
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	already := map[string]bool{}
	for line := range strings.Lines(string(in)) {
		already[line] = true
	}
	for line := range strings.Lines(groups) {
		if already[line] {
			continue
		}
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !filepath.IsAbs(f[2]) || f[2] != filepath.Clean(f[2]) {
			return fmt.Errorf("%q is no group", strings.TrimSpace(line))
		}
		at, ok := groupAt(mounts, f[1], f[2])
		if !ok {
			continue
		}
		if err := os.WriteFile(first+"/root"+at+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// groupAt is the folder of a group in a mountinfo, by the hierarchy's controllers;
// "" is version 2.
func groupAt(mounts []*mountinfo.Info, controllers, path string) (at string, ok bool) {
	for _, m := range mounts {
		if controllers == "" && m.FSType != "cgroup2" || controllers != "" && m.FSType != "cgroup" {
			continue
		}
		if controllers != "" && !hasOptions(m.VFSOptions, strings.Split(controllers, ",")) {
			continue
		}
		rel, err := filepath.Rel(m.Root, path)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		return filepath.Join(m.Mountpoint, rel), true
	}
	return "", false
}

func hasOptions(options string, want []string) bool {
	have := strings.Split(options, ",")
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}

// readMounts reads the mountinfo of a process in /proc.
func readMounts(process string) ([]*mountinfo.Info, error) {
	b, err := os.ReadFile(process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMountsFromReader(bytes.NewReader(b), nil)
}

// readSeccompFilters reads the seccomp filters of a process, oldest first, and their
// flags. It stops the process for a moment. The caller's thread ends after it, which ends
// the tracing in any case.
func readSeccompFilters(pid, count int) (all [][]byte, flags []uint32, err error) {
	if count < 1 || count > 64 {
		return nil, nil, fmt.Errorf("it has %d seccomp filters, not 1 to 64", count)
	}
	if err := unix.PtraceSeize(pid); err != nil {
		return nil, nil, fmt.Errorf("it cannot be traced: %w", err)
	}
	stopped := false
	defer func() {
		if stopped {
			unix.PtraceDetach(pid)
		}
	}()
	if err := unix.PtraceInterrupt(pid); err != nil {
		return nil, nil, err
	}
	if err := awaitStop(pid); err != nil {
		return nil, nil, err
	}
	stopped = true
	for i := range count {
		n, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(pid), uintptr(i), 0, 0, 0)
		if e != 0 {
			return nil, nil, fmt.Errorf("filter %d: %w", i, e)
		}
		if n < 1 || n > 4096 {
			return nil, nil, fmt.Errorf("filter %d has %d instructions", i, n)
		}
		b := make([]byte, n*8)
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(pid), uintptr(i), uintptr(unsafe.Pointer(&b[0])), 0, 0); e != 0 {
			return nil, nil, fmt.Errorf("filter %d: %w", i, e)
		}
		all = append(all, b)
		m := struct{ off, flags uint64 }{off: uint64(i)}
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetMetadata, uintptr(pid), unsafe.Sizeof(m), uintptr(unsafe.Pointer(&m)), 0,
			0); e != 0 {
			return nil, nil, fmt.Errorf("filter %d: %w", i, e)
		}
		flags = append(flags, uint32(m.flags))
	}
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(pid), uintptr(count), 0, 0, 0); e != unix.ENOENT {
		return nil, nil, errors.New("it has more seccomp filters than /proc reports")
	}
	return all, flags, nil
}

const (
	ptraceGetFilter   = 0x420c
	ptraceGetMetadata = 0x420d
)
