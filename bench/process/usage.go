package process

import (
	"runtime"
	"syscall"
	"time"
)

// Usage is what a process that has ended, and the children it waited for, cost.
type Usage struct {
	CPU    time.Duration // user and system
	MaxRSS int64         // bytes
}

// Usage waits for the process's end and says what the kernel counted. A
// process begins as a copy of the one that starts it, so MaxRSS is at least
// what this program held then: keep it small.
func (p *Process) Usage() (Usage, error) {
	<-p.exited
	s := p.cmd.ProcessState
	if s == nil {
		return Usage{}, p.err
	}
	u := Usage{CPU: s.UserTime() + s.SystemTime()}
	if r, ok := s.SysUsage().(*syscall.Rusage); ok {
		u.MaxRSS = int64(r.Maxrss)
		if runtime.GOOS == "linux" { // KiB there, bytes on a Mac
			u.MaxRSS *= 1024
		}
	}
	return u, p.err
}
