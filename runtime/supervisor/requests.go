package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// handle executes a request. later reports that the reply is sent when a fork has
// finished.
func (s *supervisor) handle(from *client, r *request) (a reply, later bool) {
	if r.Op != "spawn" {
		return s.handleSimple(r), false
	}
	if r.Process == nil {
		return reply{Error: "spawn: no process"}, false
	}
	pid, err := s.spawn(*r.Process, from, r.Seq)
	if err != nil {
		if old := s.byID[r.Process.ID]; (old == nil || old.reported) && s.forks[r.Process.ID] == nil {
			os.RemoveAll(r.Process.Scratch)
		}
		return reply{Error: err.Error(), NoParent: errors.Is(err, ErrNoParent)}, false
	}
	return reply{PID: pid}, pid == 0
}

func (s *supervisor) handleSimple(r *request) reply {
	switch r.Op {
	case "list":
		items := make([]Running, 0, len(s.byID))
		for _, p := range s.byID {
			if p.Exit == nil || p.reported {
				items = append(items, p.Running)
			}
		}
		slices.SortFunc(items, func(a, b Running) int { return a.Started.Compare(b.Started) })
		return reply{Items: items}
	}
	p := s.byID[r.ID]
	if p == nil {
		return reply{Error: "no process " + r.ID}
	}
	switch r.Op {
	case "signal":
		if p.Exit != nil {
			return reply{} // it has ended
		}
		if r.Signal < 0 || r.Signal > 64 {
			return reply{Error: fmt.Sprintf("invalid signal %d", r.Signal)}
		}
		if err := syscall.Kill(-p.PID, syscall.Signal(r.Signal)); err != nil && err != syscall.ESRCH {
			return reply{Error: "signal " + r.ID + ": " + err.Error()}
		}
		return reply{}
	case "forget":
		if p.Exit == nil {
			return reply{Error: r.ID + " is running"}
		}
		if p.reported {
			delete(s.byID, r.ID)
		}
		return reply{}
	}
	return reply{Error: "unknown op " + r.Op}
}

// spawn executes a process, or starts its fork by a parent: then the pid is 0 and
// finishFork makes the reply.
func (s *supervisor) spawn(p Process, from *client, seq uint64) (int, error) {
	if err := p.check(); err != nil {
		return 0, err
	}
	if s.forks[p.ID] != nil {
		return 0, fmt.Errorf("%s is being forked already", p.ID)
	}
	if p.ForkSocket != "" && len(s.forks) >= maxForks {
		return 0, fmt.Errorf("%w: %d forks are in progress", ErrNoParent, len(s.forks))
	}
	if s.ending {
		return 0, errors.New("the supervisor is ending")
	}
	if old := s.byID[p.ID]; old != nil && !old.reported {
		return 0, fmt.Errorf("%s is running already (pid %d)", p.ID, old.PID)
	}
	if p.Dir == "" {
		p.Dir = s.o.Dir
	} else if _, err := os.Stat(p.Dir); err != nil {
		return 0, err // exec would report the program as missing
	}
	p.Log = cmp.Or(p.Log, LogPath(s.o.Dir, p.ID))
	if p.Scratch != "" {
		if err := makeScratch(p.Scratch, p.ScratchFiles); err != nil {
			return 0, fmt.Errorf("scratch folder: %w", err)
		}
	}
	j, w, err := newOutputLog(p.Log, LogBytes)
	if err != nil {
		return 0, err
	}
	abandon := func() { j.close(); w.Close() }
	out := w.Fd()
	// Pipes of package os do not block; programs expect blocking output.
	if err := syscall.SetNonblock(int(out), false); err != nil {
		abandon()
		return 0, err
	}
	if p.ForkSocket != "" {
		s.startFork(&forking{p: p, j: j, from: from, seq: seq, began: time.Now()}, w)
		return 0, nil
	}
	defer w.Close()
	pid, release, err := execute(p, out)
	if err != nil {
		abandon()
		return 0, err
	}
	s.addProcess(p, pid, j)
	s.byID[p.ID].release = release
	s.o.Log.Info("spawned", "id", p.ID, "pid", pid, "program", filepath.Base(p.Argv[0]))
	return pid, nil
}

// execute starts the program of a process, with out as its output. release is called
// once the process has ended.
func execute(p Process, out uintptr) (pid int, release func(), err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: p.Dir, Env: append(slices.Clone(p.Env), idVariable+p.ID),
		Files: []uintptr{null.Fd(), out, out}, Sys: groupLeader(),
	}
	run := func() (int, error) {
		pid, err := syscall.ForkExec(p.Argv[0], p.Argv, attr)
		if err != nil {
			return 0, &os.PathError{Op: "exec", Path: p.Argv[0], Err: err}
		}
		return pid, nil
	}
	if p.Confine == nil {
		pid, err = run()
		return pid, func() {}, err
	}
	if err := forbidTracing(); err != nil {
		return 0, nil, err
	}
	opened, err := p.Confine.Open()
	if err != nil {
		return 0, nil, err
	}
	defer opened.Close()
	type result struct {
		pid int
		err error
	}
	started, ended := make(chan result, 1), make(chan struct{})
	// The death signal of a process is tied to the thread that forked it: this thread is
	// confined, lives as long as the process, and ends with the goroutine.
	go func() {
		runtime.LockOSThread()
		r := result{err: opened.Apply()}
		if r.err == nil {
			r.pid, r.err = run()
		}
		started <- r
		if r.err == nil {
			<-ended
		}
	}()
	r := <-started
	return r.pid, func() { close(ended) }, r.err
}

func (s *supervisor) addProcess(p Process, pid int, j *outputLog) {
	pr := &process{log: j, scratch: p.Scratch, ID: p.ID, PID: pid, Log: p.Log, Started: time.Now(), Meta: p.Meta}
	s.byID[p.ID], s.byPID[pid] = pr, pr
	if s.spawned++; s.spawned%16 == 1 {
		s.pruneLogs()
	}
	go j.copy()
}

// pruneLogs removes the oldest logs of ended processes.
func (s *supervisor) pruneLogs() {
	inUse := map[string]bool{}
	for _, p := range s.byID {
		if p.Exit == nil {
			inUse[p.Log], inUse[p.Log+".1"] = true, true
		}
	}
	pruneLogs(filepath.Join(s.o.Dir, "logs"), inUse)
}
