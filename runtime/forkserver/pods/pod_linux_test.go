package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "runtime":
			started(os.Args[2])
		case "confined":
			confined(os.Args[2])
		case "shim":
			inPod(os.Args[2])
		}
	}
	testkit.ShortenExits()
	os.Exit(m.Run())
}

// capacityCase is what a test's pod is to be: namespaces, a user and limits of its own, made
// as a container runtime makes them.
type capacityCase struct {
	Name    string
	Do      string // of scene
	Socket  string
	Program string
	Dir     string // its own, to write in
	Target  int    // a process outside
	Args    []string
	Times   int

	Root            bool // stays root
	GainsPrivileges bool // no no_new_privs
	Open            bool // no seccomp
	Cap             bool // keeps a capability
	Outside         bool // in the machine's own namespaces
	Second          bool // not its container's first process
	Umask           int
}

const podUser = 65532

// started is a container runtime: another process than the node's interpreter is the
// parent of pods, and waits for them.
func started(arg string) {
	runtime.LockOSThread()
	var r capacityCase
	fatal(json.Unmarshal([]byte(arg), &r))
	cmd := exec.Command(os.Args[0], "confined", arg)
	cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdout, os.Stderr, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if !r.Outside {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	}
	// Its end is the pod's, whose own death signal went with its user.
	fatal(cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGTERM)
	var err error
	select {
	case err = <-done:
	case <-gone:
		cmd.Process.Kill()
		err = <-done
	}
	fatal(err)
	os.Exit(0)
}

// confined is the last of a container runtime: it makes itself what the pod is, and
// executes the pod's program.
func confined(arg string) {
	runtime.LockOSThread()
	var r capacityCase
	fatal(json.Unmarshal([]byte(arg), &r))
	if !r.Outside {
		fatal(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		fatal(unix.Mount("proc", "/proc", "proc", 0, ""))
		fatal(unix.Sethostname([]byte(r.Name)))
	}
	fatal(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: 1000}))
	fatal(unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
	fatal(unix.Setpriority(unix.PRIO_PROCESS, 0, 3))
	fatal(os.WriteFile("/proc/thread-self/oom_score_adj", []byte("321"), 0))
	unix.Umask(r.Umask)
	for c := range 64 {
		if c != unix.CAP_NET_RAW && unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0) != nil {
			break
		}
	}
	if !r.Root {
		if r.Cap {
			fatal(unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0))
		}
		groups := []uint32{77, podUser}
		_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
		fatalErrno(e)
		_, _, e = unix.RawSyscall(unix.SYS_SETRESGID, podUser, podUser, podUser)
		fatalErrno(e)
		_, _, e = unix.RawSyscall(unix.SYS_SETRESUID, podUser, podUser, podUser)
		fatalErrno(e)
		if r.Cap {
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			d := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_RAW, Permitted: 1 << unix.CAP_NET_RAW, Inheritable: 1 << unix.CAP_NET_RAW}}
			fatal(unix.Capset(&h, &d[0]))
			fatal(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW, 0, 0))
		}
	}
	if !r.GainsPrivileges {
		fatal(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	if !r.Open && !r.GainsPrivileges {
		fatal(forbid(unix.SYS_SETHOSTNAME, 41)) // one of each, to see both taken over, and their order
		fatal(forbid(unix.SYS_SYNC, 42))
	}
	argv := []string{os.Args[0], "shim", arg}
	if r.Second {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if cmd.Run() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	fatal(syscall.Exec(argv[0], argv, []string{"PATH=/usr/bin:/bin", "HOME=/tmp"}))
}

// forbid has a system call fail with a number of its own.
func forbid(call, errno uint32) error {
	const load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	f := []unix.SockFilter{
		{Code: load, K: 0},
		{Code: equal, Jt: 0, Jf: 1, K: call},
		{Code: give, K: 0x00050000 | errno},
		{Code: give, K: 0x7fff0000},
	}
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&p)))
	if e != 0 {
		return e
	}
	return nil
}

func fatal(err error) {
	if err != nil {
		_, _, line, _ := runtime.Caller(1)
		fmt.Fprintln(os.Stderr, line, err)
		os.Exit(1)
	}
}

func fatalErrno(e syscall.Errno) {
	if e != 0 {
		_, _, line, _ := runtime.Caller(1)
		fmt.Fprintln(os.Stderr, line, e)
		os.Exit(1)
	}
}

// outcome is what a pod's program prints.
type outcome struct {
	PID    int
	Err    string
	Errs   []string
	NoWarm bool // the error is supervisor.ErrNoParent
	Tail   string
	Code   int
	Facts  *forkserver.Facts
	Status map[string]string // the shim's own
}

// inPod is the pod's program: a shim as the keeper makes one.
func inPod(arg string) {
	var r capacityCase
	fatal(json.Unmarshal([]byte(arg), &r))
	var out outcome
	b, err := os.ReadFile("/proc/self/status")
	fatal(err)
	out.Status = parseStatus(b)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	note := func(err error) {
		if err != nil {
			out.Err, out.NoWarm = err.Error(), errors.Is(err, supervisor.ErrNoParent)
		}
	}
	switch r.Do {
	case "facts":
		for range max(r.Times, 1) {
			f, err := forkserver.AskFacts(ctx, r.Socket)
			note(err)
			if err == nil {
				out.Facts = &f
			} else {
				out.Errs = append(out.Errs, err.Error())
			}
		}
	case "say": // lines that no shim says, each to another child
		for _, a := range r.Args {
			c, err := net.Dial("unix", r.Socket)
			fatal(err)
			fmt.Fprintln(c, a)
			c.(*net.UnixConn).CloseWrite()
			b := make([]byte, 1<<16)
			n, err := c.Read(b)
			note(err)
			out.Errs = append(out.Errs, string(b[:n]))
			c.Close()
		}
	case "engine":
		podCtx, end := context.WithCancel(ctx)
		dir := filepath.Join(r.Dir, "k")
		ran := make(chan error, 1)
		go func() {
			ran <- supervisor.Run(podCtx, supervisor.Options{Dir: dir, Socket: filepath.Join(dir, "s"), Orphan: time.Minute})
		}()
		var k *supervisor.Client
		tick := time.NewTicker(time.Millisecond)
		for {
			if k, err = supervisor.Connect(ctx, filepath.Join(dir, "s")); err == nil || ctx.Err() != nil {
				break
			}
			<-tick.C
		}
		tick.Stop()
		fatal(err)
		child, err := k.Spawn(ctx, supervisor.Process{ID: "model", Argv: append([]string{r.Program}, r.Args...), Env: []string{"A=b", "HOME=" + r.Dir}, Dir: r.Dir, ForkSocket: r.Socket})
		note(err)
		if err == nil {
			out.PID = child.PID
			select {
			case e := <-child.Exited:
				b, err := os.ReadFile(child.Log)
				fatal(err)
				out.Code, out.Tail = e.Code, string(b)
			case <-ctx.Done():
				note(ctx.Err())
			}
		}
		end()
		<-ran
	}
	fatal(json.NewEncoder(os.Stdout).Encode(out))
	os.Exit(0)
}

// lab is a node: an interpreter that is lent.
type lab struct {
	t     *testing.T
	host  *Host
	store string
	log   *lockedBuffer
	known sync.Map // pid to pod, as the kernel would tell by control groups
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// engine is what is forked: it says what it is.
const engine = `
import ctypes, errno, json, os, socket, sys
def tried(f):
    try:
        return str(f())
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e.errno))
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    return 0 if libc.syscall(*a) >= 0 else -ctypes.get_errno()
target = int(sys.argv[1]) if len(sys.argv) > 1 else 0
fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        pass  # the listing's own
say = {
    "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "host": socket.gethostname(), "pid": os.getpid(), "ppid": os.getppid(),
    "sid": os.getsid(0), "pgid": os.getpgid(0), "fds": fds, "dumpable": libc.prctl(3, 0, 0, 0, 0),
    "status": open("/proc/self/status").read(), "limits": open("/proc/self/limits").read(), "oom": open("/proc/self/oom_score_adj").read().strip(),
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "groups": open("/proc/self/cgroup").read(),
    "ns": {n: os.readlink("/proc/self/ns/" + n) for n in os.listdir("/proc/self/ns")},
    "pids": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
    "sethostname": call(170 if os.uname().machine == "x86_64" else 161, b"x", 1), "sync": call(162 if os.uname().machine == "x86_64" else 81),
    "setuid": tried(lambda: os.setuid(0)), "mount": call(165 if os.uname().machine == "x86_64" else 40, b"none", b"/tmp", b"tmpfs", 0, None),
    "secrets": [k for k in globals() if "secret" in k],
    "exe": tried(lambda: os.open("/proc/self/exe", os.O_RDWR)),
    "parent": tried(lambda: os.kill(target, 0)) if target else "", "mem": tried(lambda: os.open("/proc/%d/mem" % target, os.O_RDONLY)) if target else "",
    "ptrace": call(101 if os.uname().machine == "x86_64" else 117, 16, target, 0, 0) if target else 0,
    "up": tried(lambda: os.listdir("/proc/1/root/proc/%d" % target)),
    "earlier": "EARLIER" in repr(sorted(os.environ)) or hasattr(sys, "earlier"),
    "modules": "multiprocessing" in sys.modules, "shared": [l for l in open("/proc/self/maps") if l.split()[1].endswith("s") and l.split()[1].startswith("rw")],
    "keyring": call(250 if os.uname().machine == "x86_64" else 219, 0, -3, 0),
}
sys.earlier = "EARLIER"
print(json.dumps(say))
`

func newLab(t *testing.T, change func(*Options)) *lab {
	t.Helper()
	if err := checkPrivileges(); err != nil {
		testkit.Missing(t, err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		testkit.Missing(t, err)
	}
	dir, err := os.MkdirTemp("", "warm-host") // short, and readable by all
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	program := filepath.Join(dir, "engine")
	if err := os.WriteFile(program, []byte(engine), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, store: filepath.Join(dir, "store"), log: &lockedBuffer{}}
	if err := os.Mkdir(l.store, 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{Sockets: l.store, Argv: []string{python}, Program: program, Row: "bare", Env: []string{"PATH=/usr/bin:/bin", "NODE=1"}, Dir: filepath.Join(dir, "own"),
		IdentifyPod: l.who, PerPod: 100, PerNode: 100, Log: slog.New(slog.NewTextHandler(l.log, nil))}
	if change != nil {
		change(&o)
	}
	l.host = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- l.host.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s", l.log)
		}
	})
	l.ready(0)
	return l
}

// ready waits for an interpreter that is none of an earlier process, and gives its
// own.
func (l *lab) ready(not int) int {
	l.t.Helper()
	pid := 0
	testkit.Eventually(l.t, "an interpreter", func() (bool, string) {
		l.host.mu.Lock()
		defer l.host.mu.Unlock()
		if p := l.host.parent; p != nil && p.pid != not {
			pid = p.pid
		}
		return pid != 0, l.log.String()
	})
	return pid
}

func (l *lab) who(conn *net.UnixConn) (string, error) {
	p, err := dialingProcess(conn)
	if err != nil {
		return "", err
	}
	defer p.Close()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return "", err
	}
	s := parseStatus(b)
	// Its ancestor that the test has started.
	for pid := p.PID; pid > 1; {
		if name, ok := l.known.Load(pid); ok {
			return name.(string), nil
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return "", err
		}
		pid, _ = strconv.Atoi(parseStatus(b)["PPid"])
	}
	return "", fmt.Errorf("process %d (%s) is in no pod", p.PID, s["Name"])
}

// pod runs one to its end.
func (l *lab) pod(r capacityCase) outcome {
	l.t.Helper()
	cmd, out := l.begin(r)
	if err := cmd.Wait(); err != nil {
		l.t.Fatalf("%s: %v\n%s", r.Name, err, out)
	}
	var o outcome
	if err := json.Unmarshal([]byte(out.String()), &o); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	return o
}

func (l *lab) begin(r capacityCase) (*exec.Cmd, *lockedBuffer) {
	l.t.Helper()
	r.Name = strings.ReplaceAll(cmpOr(r.Name, "pod-a"), " ", "-")
	r.Socket, r.Program = cmpOr(r.Socket, forkserver.HostSocket(l.store)), cmpOr(r.Program, l.host.o.Program)
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { os.RemoveAll(dir) })
	r.Dir = dir
	if err := os.Chown(dir, podUser, podUser); err != nil {
		l.t.Fatal(err)
	}
	arg, err := json.Marshal(r)
	if err != nil {
		l.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		l.t.Fatal(err)
	}
	// The pod's user cannot read where tests are built.
	own := filepath.Join(filepath.Dir(l.store), "shim")
	if _, err := os.Stat(own); err != nil {
		b, err := os.ReadFile(exe)
		if err == nil {
			err = os.WriteFile(own, b, 0o755)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	cmd := exec.Command(own, "runtime", string(arg))
	out := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.known.Store(cmd.Process.Pid, r.Name)
	l.t.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM) })
	return cmd, out
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// said is what an engine printed of itself.
type said struct {
	Argv             []string
	Env              map[string]string
	Cwd, Host        string
	PID, PPID        int
	SID, PGID        int
	FDs              map[string]string
	Dumpable         int
	Status, Limits   string
	OOM, Groups      string
	Nice             int
	NS               map[string]string
	PIDs             []int
	Sethostname      int
	Sync, Mount      int
	Setuid, Exe      string
	Parent, Mem, Up  string
	Ptrace, Keyring  int
	Earlier, Modules bool
	Shared, Secrets  []string
}

func (l *lab) engine(r capacityCase) (outcome, said) {
	l.t.Helper()
	r.Do = "engine"
	o := l.pod(r)
	var s said
	if o.Err != "" || o.Code != 0 {
		l.t.Fatalf("%+v", o)
	}
	if err := json.Unmarshal([]byte(o.Tail), &s); err != nil {
		l.t.Fatalf("%v: %+v", err, o)
	}
	return o, s
}
