package supervisor

import (
	"os"
	"strings"
	"syscall"
	"time"
)

// reap collects every ended child, leaders and adopted strays, and reports whether
// there were any.
func (s *supervisor) reap() (any bool) {
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
		if s.byPID[pid] != nil {
			s.processExited(pid, ws)
		} else if len(s.forks) > 0 {
			s.earlyExits[pid] = ws
		}
	}
	return any
}

func (s *supervisor) processExited(pid int, ws syscall.WaitStatus) {
	p := s.byPID[pid]
	// The group's number is not reused while it has members.
	syscall.Kill(-pid, syscall.SIGKILL)
	delete(s.byPID, pid)
	if p.release != nil {
		p.release()
	}
	e := &Exit{ID: p.ID, PID: pid, Code: -1, At: time.Now()}
	if ws.Signaled() {
		e.Signal = ws.Signal()
		if e.Signal == syscall.SIGKILL {
			n := oomKills()
			e.OOM, s.ooms = n > s.ooms, n
		}
	} else {
		e.Code = ws.ExitStatus()
	}
	p.Exit = e
	s.ended = e.At
	go func() {
		p.log.finish(logDrainWait)
		p.removeLeftovers()
		select {
		case s.drained <- p:
		case <-s.stop:
		}
	}()
}

// killStrays kills children that belong to no running process, which engines forked
// and abandoned, and returns how many it found.
func (s *supervisor) killStrays() (seen int) {
	if len(s.forks) > 0 {
		return 1 // a stray may be a fork in progress; it is checked again later
	}
	self := os.Getpid()
	for _, c := range listProcesses() {
		if c.PPID != self || s.byPID[c.PID] != nil || s.byPID[c.PGRP] != nil {
			continue
		}
		owned := false
		for _, p := range s.byPID {
			if hasEnvironment(c.PID, idVariable+p.ID) {
				owned = true
				break
			}
		}
		if owned && !s.ending {
			continue
		}
		seen++
		syscall.Kill(c.PID, syscall.SIGKILL)
	}
	return seen
}

// reportExit adds the last lines of the log to an exit and sends it to every client.
func (s *supervisor) reportExit(p *process) {
	p.Exit.Tail, p.reported = strings.ToValidUTF8(p.log.lastBytes(), "\uFFFD"), true
	p.log = nil
	s.o.Log.Info("ended", "id", p.ID, "pid", p.PID, "how", p.Exit.String())
	for c := range s.clients {
		c.send(reply{Exit: p.Exit})
	}
	s.order = append(s.order, p.ID)
	for len(s.order) > keepExits {
		if old := s.byID[s.order[0]]; old != nil && old.reported {
			delete(s.byID, old.ID)
		}
		s.order = s.order[1:]
	}
}
