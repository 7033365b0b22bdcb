package process

import (
	"runtime"
	"syscall"
	"time"
)

// Usage is the cost of an ended process and of the children it waited for.
type Usage struct {
	CPU    time.Duration // user and system
	MaxRSS int64         // bytes
}

// Usage waits for the process's end and returns the kernel's counts. A process starts as
// a copy of its parent, so MaxRSS is at least this program's memory at that time: keep
// it small.
func (p *Process) Usage() (Usage, error) {
	<-p.exited
	s := p.cmd.ProcessState
	if s == nil {
		return Usage{}, p.err
	}
	u := Usage{CPU: s.UserTime() + s.SystemTime()}
	if r, ok := s.SysUsage().(*syscall.Rusage); ok {
		u.MaxRSS = int64(r.Maxrss)
		if runtime.GOOS == "linux" { // KiB there, bytes on macOS
			u.MaxRSS *= 1024
		}
	}
	return u, p.err
}
