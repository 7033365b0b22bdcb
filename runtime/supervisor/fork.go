package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// forkWait bounds the conversation with a parent. It runs beside the supervisor's
// loop.
const forkWait = 5 * time.Second

const maxForks = 16

// forking is a spawn through a parent, in progress.
type forking struct {
	p     Process
	j     *outputLog
	from  *client
	seq   uint64
	conn  *jsonsocket.Conn // open until the engine may continue
	pid   int
	err   error
	began time.Time
}

// startFork asks the parent on p.ForkSocket for a process, in a goroutine whose outcome is
// sent to s.forked.
func (s *supervisor) startFork(f *forking, out *os.File) {
	s.forks[f.p.ID] = f
	go func() {
		defer out.Close()
		f.conn, f.pid, f.err = requestFork(f.p, out)
		select {
		case s.forked <- f:
		case <-s.stop:
			if f.conn != nil {
				f.conn.Close() // the forked process then ends itself
			}
		}
	}()
}

// finishFork registers a forked process and lets it continue, once it is known to be
// a child of the supervisor.
func (s *supervisor) finishFork(f *forking) reply {
	delete(s.forks, f.p.ID)
	defer s.dropEarlyExits()
	if f.conn != nil {
		defer f.conn.Close()
	}
	err := f.err
	if err == nil && s.ending {
		err = errors.New("the supervisor is ending")
	}
	if err == nil && !isChild(f.pid) {
		err = fmt.Errorf("process %d is not a child of the supervisor", f.pid)
	}
	if err == nil && f.p.Confine != nil {
		err = f.p.Confine.Check(f.pid)
	}
	if err == nil {
		f.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = f.conn.Write([]byte{'\n'})
	}
	if err != nil {
		f.j.close()
		os.RemoveAll(f.p.Scratch)
		s.o.Log.Warn("fork failed", "id", f.p.ID, "error", err)
		return reply{Error: err.Error(), NoParent: true}
	}
	s.addProcess(f.p, f.pid, f.j)
	s.o.Log.Info("forked", "id", f.p.ID, "pid", f.pid, "took", time.Since(f.began).Round(time.Millisecond))
	if ws, ok := s.earlyExits[f.pid]; ok { // it has exited already
		s.processExited(f.pid, ws)
	}
	return reply{PID: f.pid}
}

// dropEarlyExits drops exits of unknown children once no fork is in progress.
func (s *supervisor) dropEarlyExits() {
	if len(s.forks) == 0 {
		clear(s.earlyExits)
	}
}

// forkUser is the user of a forked process that is confined; ID 0 keeps the parent's.
type forkUser struct {
	ID     int   `json:"user"`
	Groups []int `json:"groups"`
}

// requestFork asks a parent to fork and returns the connection on which the new
// process waits for one byte. Package runtime/forkserver describes the protocol.
func requestFork(p Process, out *os.File) (conn *jsonsocket.Conn, pid int, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, 0, err
	}
	defer null.Close()
	ctx, cancel := context.WithTimeout(context.Background(), forkWait)
	defer cancel()
	conn, err = jsonsocket.Dial(ctx, p.ForkSocket, MaxLine)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			conn.Close()
			conn = nil
		}
	}()
	conn.SetDeadline(time.Now().Add(forkWait))
	files := []*os.File{null, out, out}
	var user *forkUser
	if p.Confine != nil {
		opened, err := p.Confine.Open()
		if err != nil {
			return conn, 0, err
		}
		defer opened.Close()
		files = append(files, opened.File())
		user = &forkUser{ID: p.Confine.User, Groups: append(opened.Groups(), p.Confine.User)}
	}
	err = conn.Send(struct {
		Op      string    `json:"op"`
		Argv    []string  `json:"argv"`
		Env     []string  `json:"env"`
		Dir     string    `json:"dir"`
		Confine *forkUser `json:"confine,omitempty"`
	}{"fork", p.Argv, append(p.Env[:len(p.Env):len(p.Env)], idVariable+p.ID), p.Dir, user}, files...)
	// A parent that refuses may have closed its end already; its answer has the reason.
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return conn, 0, err
	}
	var a struct {
		PID   int    `json:"pid"`
		Error string `json:"error"`
	}
	switch err = conn.Receive(&a); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return conn, 0, fmt.Errorf("no answer within %s", forkWait)
	case err != nil:
		return conn, 0, fmt.Errorf("no answer: %w", err)
	case a.Error != "":
		return conn, 0, errors.New(a.Error)
	case a.PID <= 1:
		return conn, 0, fmt.Errorf("invalid process id %d", a.PID)
	}
	return conn, a.PID, nil
}
