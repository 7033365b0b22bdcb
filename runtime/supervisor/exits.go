package supervisor

import (
	"os"
	"strings"
	"syscall"
	"time"
)

// reap collects every ended child, leaders and adopted strays, and reports whether
// there were any.
func (k *supervisor) reap() (any bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		any = true
		if k.byPID[pid] != nil {
			k.processExited(pid, ws)
		} else if len(k.forks) > 0 {
			k.earlyExits[pid] = ws
		}
	}
	return any
}

// processExited handles the exit of a group leader.
func (k *supervisor) processExited(pid int, ws syscall.WaitStatus) {
	p := k.byPID[pid]
	// The group's number is not reused while it has members.
	syscall.Kill(-pid, syscall.SIGKILL)
	delete(k.byPID, pid)
	if p.release != nil {
		p.release()
	}
	e := &Exit{ID: p.ID, PID: pid, Code: -1, At: time.Now()}
	if ws.Signaled() {
		e.Signal = ws.Signal()
		if e.Signal == syscall.SIGKILL {
			n := oomKills()
			e.OOM, k.ooms = n > k.ooms, n
		}
	} else {
		e.Code = ws.ExitStatus()
	}
	p.Exit = e
	k.ended = e.At
	go func() {
		p.log.finish(logDrainWait)
		p.removeLeftovers()
		select {
		case k.drained <- p:
		case <-k.stop:
		}
	}()
}

// killStrays kills children that belong to no running process, which engines forked
// and abandoned, and returns how many it found.
func (k *supervisor) killStrays() (seen int) {
	if len(k.forks) > 0 {
		return 1 // a stray may be a fork in progress; it is checked again later
	}
	self := os.Getpid()
	for _, c := range listProcesses() {
		if c.parent != self || c.zombie || k.byPID[c.pid] != nil || k.byPID[c.group] != nil {
			continue
		}
		owned := false
		for _, p := range k.byPID {
			if hasEnvironment(c.pid, idVariable+p.ID) {
				owned = true
				break
			}
		}
		if owned && !k.ending {
			continue
		}
		seen++
		syscall.Kill(c.pid, syscall.SIGKILL)
	}
	return seen
}

// reportExit adds the last lines of the log to an exit and sends it to every client.
func (k *supervisor) reportExit(p *process) {
	p.Exit.Tail, p.reported = strings.ToValidUTF8(p.log.lastBytes(), "\uFFFD"), true
	p.log = nil
	k.o.Log.Info("ended", "id", p.ID, "pid", p.PID, "how", p.Exit.String())
	for c := range k.clients {
		c.send(reply{Exit: p.Exit})
	}
	k.order = append(k.order, p.ID)
	for len(k.order) > keepExits {
		if old := k.byID[k.order[0]]; old != nil && old.reported {
			delete(k.byID, old.ID)
		}
		k.order = k.order[1:]
	}
}
