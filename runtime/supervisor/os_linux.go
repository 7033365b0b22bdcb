package supervisor

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
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

// listProcesses lists the processes that have not ended.
func listProcesses() (alive []procfs.ProcStat) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && stat.State != "Z" && stat.State != "X" {
			alive = append(alive, stat)
		}
	}
	return alive
}

func readStat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

func isChild(pid int) bool {
	stat, err := readStat(pid)
	return err != nil || stat.PPID == os.Getpid() // one that has ended is reaped like any child
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
	stat, err := readStat(pid)
	if err != nil {
		return 0, syscall.Kill(pid, 0) == syscall.EPERM
	}
	return stat.PPID, true
}

// Listening lists the addresses at which the group of a process accepts TCP connections.
func Listening(group int) (addresses []string) {
	listeners := map[string]string{} // by what a descriptor of theirs leads to
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	const listen = 10 // TCP_LISTEN
	//lint:ignore SA1019 netlink is quicker with many thousand connections; this is read a few times as an engine starts
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} {
		lines, _ := read()
		for _, l := range lines {
			if l.St == listen {
				listeners[fmt.Sprintf("socket:[%d]", l.Inode)] = net.JoinHostPort(l.LocalAddr.String(), strconv.FormatUint(l.LocalPort, 10))
			}
		}
	}
	for _, stat := range listProcesses() {
		if stat.PGRP != group {
			continue
		}
		p, _ := fs.Proc(stat.PID)
		targets, _ := p.FileDescriptorTargets() // of one that has ended: none
		for _, to := range targets {
			if a := listeners[to]; a != "" && !slices.Contains(addresses, a) {
				addresses = append(addresses, a)
			}
		}
	}
	return addresses
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
	if slices.ContainsFunc(all, func(p procfs.ProcStat) bool { return p.PID == sid }) {
		return 0 // its leader lives
	}
	for _, p := range all {
		if p.Session == sid && syscall.Kill(p.PID, syscall.SIGKILL) == nil {
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
