package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/forkserver"
)

// parent is the interpreter: a child process that reads one descriptor.
type parent struct {
	pid    int
	facts  forkserver.Facts
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended

	mu   sync.Mutex // of the conversation
	conn *os.File   // a socket of whole messages
	// libraries are the files that it has mapped, and its program: the pod must have
	// the same.
	libraries []string
}

// maxMessage bounds one message of the interpreter: its facts.
const maxMessage = 1 << 20

// checkPrivileges is why this process cannot inspect pods and enter them.
func checkPrivileges() error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	s := parseStatus(b)
	if os.Geteuid() != 0 {
		return errors.New("it takes root")
	}
	if s["Seccomp"] != "0" {
		return errors.New("it is under a seccomp filter itself, so the kernel shows it no other's: seccompProfile Unconfined is what it takes")
	}
	caps, err := parseHex(s["CapEff"])
	if err != nil {
		return err
	}
	for name, c := range map[string]int{
		"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_PTRACE": unix.CAP_SYS_PTRACE, "SYS_CHROOT": unix.CAP_SYS_CHROOT,
		"SETUID": unix.CAP_SETUID, "SETGID": unix.CAP_SETGID, "SETPCAP": unix.CAP_SETPCAP, "KILL": unix.CAP_KILL,
	} {
		if caps>>c&1 == 0 {
			return fmt.Errorf("it lacks CAP_%s", name)
		}
	}
	// The namespace of all users, where the kernel gives filters back.
	if m, err := os.ReadFile("/proc/self/uid_map"); err != nil || strings.Join(strings.Fields(string(m)), " ") != "0 0 4294967295" {
		return errors.New("its users are not the machine's own")
	}
	return nil
}

// openRootOwnedDir opens a folder that only root can change, and makes it if it is
// missing.
func openRootOwnedDir(in, name string) (*os.File, error) {
	dir, err := unix.Open(in, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: in, Err: err}
	}
	defer unix.Close(dir)
	path := filepath.Join(in, name)
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && err != unix.EEXIST {
		return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
		f.Close()
		return nil, fmt.Errorf("%s is not owned by root or is writable by others", path)
	}
	// Whatever umask this process was given.
	if err := f.Chmod(0o755); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// start starts an interpreter and waits for its imports.
func (h *Host) start(ctx context.Context, script string) (*parent, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, maxMessage)
	}
	childEnd := os.NewFile(uintptr(fds[1]), "interpreter")
	defer childEnd.Close()
	unix.SetNonblock(fds[0], true)
	argv := append(slices.Clone(h.o.Argv), script, "fd:3", h.o.Program, h.o.Row)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = h.o.Env, "/"
	cmd.ExtraFiles = []*os.File{childEnd}
	reply := &outputLog{log: h.log.Info}
	cmd.Stdout, cmd.Stderr = reply, reply
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p := &parent{cmd: cmd, exited: make(chan struct{}), conn: os.NewFile(uintptr(fds[0]), "owner")}
	if err := cmd.Start(); err != nil {
		p.conn.Close()
		return nil, err
	}
	p.pid = cmd.Process.Pid
	go func() {
		cmd.Wait()
		close(p.exited)
		p.conn.Close() // ends pending reads
	}()
	defer context.AfterFunc(ctx, func() { p.conn.SetDeadline(time.Unix(1, 0)) })()
	p.facts, err = p.readMessage(forkserver.ImportTimeout)
	if err == nil {
		err = p.inspect()
	}
	if err != nil {
		p.kill()
		if t := reply.lastLine(); t != "" {
			err = fmt.Errorf("%w: %s", err, t)
		}
		return nil, err
	}
	return p, nil
}

func (p *parent) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

func (p *parent) readMessage(within time.Duration) (forkserver.Facts, error) {
	p.conn.SetReadDeadline(time.Now().Add(within))
	b := make([]byte, maxMessage)
	n, err := p.conn.Read(b)
	if err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) {
			err = errors.New("it ended")
		}
		return forkserver.Facts{}, err
	}
	var a struct {
		Facts forkserver.Facts
		Error string
	}
	if err := json.Unmarshal(b[:n], &a); err != nil {
		return forkserver.Facts{}, err
	}
	if a.Error != "" {
		return forkserver.Facts{}, errors.New(a.Error)
	}
	return a.Facts, nil
}

func (p *parent) readFacts() (forkserver.Facts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.conn.Write([]byte("facts")); err != nil {
		return forkserver.Facts{}, err
	}
	return p.readMessage(answerTimeout)
}

// fork has it fork once, with these descriptors.
func (p *parent) fork(fds []int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Write(func(fd uintptr) bool {
		failed = unix.Sendmsg(int(fd), []byte("fork"), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return failed != unix.EAGAIN
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	_, err = p.readMessage(answerTimeout)
	return err
}

// inspect checks the interpreter from outside: it shares no writable memory with its
// children, and only root can change its program.
func (p *parent) inspect() error {
	process, err := procfs.NewProc(p.pid)
	if err != nil {
		return err
	}
	maps, err := process.ProcMaps()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, m := range maps {
		if m.Perms.Read && m.Perms.Write && m.Perms.Shared {
			return fmt.Errorf("the interpreter shares memory with its children (%s)", m.Pathname)
		}
		if strings.HasPrefix(m.Pathname, "/") && m.Perms.Execute {
			seen[strings.TrimSuffix(m.Pathname, " (deleted)")] = true
		}
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/exe", p.pid), &st); err != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not root's alone to write: a pod could change it by its own /proc", exe)
	}
	for _, f := range append([]string{p.facts.Program, exe}, p.facts.Files...) {
		seen[f] = true
	}
	for f := range seen {
		if filepath.IsAbs(f) {
			p.libraries = append(p.libraries, f)
		}
	}
	slices.Sort(p.libraries)
	return nil
}

// outputLog logs the interpreter's output, and keeps the last line.
type outputLog struct {
	log func(string, ...any)
	mu  sync.Mutex
	buf []byte
	end string
}

func (l *outputLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, b...)
	for {
		i := bytes.IndexByte(l.buf, '\n')
		if i < 0 {
			break
		}
		if line := strings.TrimSpace(string(l.buf[:i])); line != "" {
			l.end = truncate(line, 400)
			l.log("interpreter", "output", l.end)
		}
		l.buf = l.buf[i+1:]
	}
	if len(l.buf) > 4096 {
		l.buf = nil
	}
	return len(b), nil
}

func (l *outputLog) lastLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// onThread runs f on a thread of its own that ends with it: namespaces and tracing are of
// a thread, and another goroutine must not inherit them.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this
		done <- f()
	}()
	return <-done
}
