package supervisor

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/peercred"
)

// forbidTracing hides the memory and the environment of this process from others of its
// user. The thread that starts a confined process is in the Landlock domain of that
// process, which therefore could trace the thread, and with it this process.
func forbidTracing() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// becomeReaper makes orphaned descendants children of this process.
func becomeReaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// groupLeader starts a process in a group of its own that is killed when the thread
// that forked it ends.
func groupLeader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// processInfo is one process as read from /proc/PID/stat.
type processInfo struct {
	pid, parent, group, session int
	zombie                      bool
}

func listProcesses() []processInfo {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []processInfo
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if k, ok := parseStat(pid, stat); ok {
			all = append(all, k)
		}
	}
	return all
}

// parseStat reads "PID (name, which may hold anything) STATE PPID PGRP SESSION …".
func parseStat(pid int, stat []byte) (processInfo, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return processInfo{}, false
	}
	f := strings.Fields(string(stat[i+1:]))
	if len(f) < 4 {
		return processInfo{}, false
	}
	k := processInfo{pid: pid, zombie: f[0] == "Z" || f[0] == "X"}
	for j, p := range []*int{&k.parent, &k.group, &k.session} {
		n, err := strconv.Atoi(f[j+1])
		if err != nil {
			return processInfo{}, false
		}
		*p = n
	}
	return k, true
}

func isChild(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true // it has ended and is reaped like any child
	}
	k, ok := parseStat(pid, stat)
	return ok && k.parent == os.Getpid()
}

// isOwnProcess reports whether the peer of a connection is a process that this
// supervisor started, or a descendant of one. Landlock lets an engine connect to the
// socket, and of a supervisor without root it has the user too; it may not have processes
// started.
func isOwnProcess(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	p, err := peercred.Of(sc)
	if err != nil {
		return true // it has ended: there is nothing to serve
	}
	defer p.Close()
	for range 3 { // an ancestor that ends meanwhile leaves its children another parent
		if own, known := descends(p.PID, os.Getpid(), parentOf); known {
			return own || !p.Alive()
		}
	}
	return true
}

// descends reports whether a process is a descendant of another; known is false if a
// process of the chain is not there.
func descends(pid, from int, parent func(int) (int, bool)) (own, known bool) {
	if pid <= 0 {
		return false, false
	}
	for pid > 1 {
		up, ok := parent(pid)
		if !ok || up == from {
			return ok, ok
		}
		pid = up
	}
	return false, true
}

// parentOf is the parent of a process; 0 for one of another user that /proc hides
// (hidepid), which no engine is.
func parentOf(pid int) (int, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, syscall.Kill(pid, 0) == syscall.EPERM
	}
	k, ok := parseStat(pid, stat)
	return k.parent, ok
}

// hasEnvironment reports whether a process was started with this NAME=VALUE.
func hasEnvironment(pid int, line string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), line)
}

// endSession kills the processes left in the session of a dead supervisor. The
// session's number is not reused while it has members.
func endSession(sid int) (killed int) {
	if sid <= 1 {
		return 0
	}
	all := listProcesses()
	for _, k := range all {
		if k.pid == sid && !k.zombie {
			return 0 // its leader lives
		}
	}
	for _, k := range all {
		if k.session == sid && !k.zombie && k.pid != sid && syscall.Kill(k.pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// oomKills is how many processes the kernel has killed for lack of memory, on this
// machine or in its containers; 0 if unknown.
func oomKills() int64 {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}
