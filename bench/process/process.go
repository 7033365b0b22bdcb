package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ErrNoProc means that the system does not report a process's cost.
var ErrNoProc = errors.New("needs /proc: measured on Linux only")

// Process is a running program and the process group it leads. Begin starts it, End ends
// it; both belong to one owner.
type Process struct {
	Name string
	PID  int

	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	err    error // owned by the waiter until exited is closed
}

// Begin starts argv with its output in dir/NAME.log and returns at once. env is added to
// the environment.
func Begin(name, dir string, env []string, argv ...string) (*Process, error) {
	log := filepath.Join(dir, name+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, PID: cmd.Process.Pid, cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// End sends SIGTERM, waits up to grace, then kills the whole group. It returns when the
// process has ended; a second call does nothing.
func (p *Process) End(grace time.Duration) {
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(p.PID, syscall.SIGTERM)
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-p.exited:
		case <-t.C:
		}
	}
	// The group may have members after its leader has ended.
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	<-p.exited
}

// Tail returns the end of the process's output, for an error message.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	if len(b) > 1500 {
		b = b[len(b)-1500:]
	}
	return string(bytes.TrimSpace(b))
}

// Log returns the path of the process's output.
func (p *Process) Log() string { return p.log }

// WaitHTTP polls url until it answers 200, the process ends or ctx does.
func (p *Process) WaitHTTP(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p.poll(ctx, func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// WaitTCP waits until addr accepts connections.
func (p *Process) WaitTCP(ctx context.Context, addr string) error {
	return p.poll(ctx, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

func (p *Process) poll(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended before it was ready (%v): %s", p.Name, p.err, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", p.Name, context.Cause(ctx), p.Tail())
		case <-tick.C:
		}
	}
	return nil
}

// FreeAddr returns a loopback address with a currently free port.
func FreeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
