package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// warmParent runs the real parent with nothing imported, as a process of the
// supervisor, and gives its socket. program is what it forks.
func (h *harness) warmParent(program string) (socket string, parent *Child) {
	h.t.Helper()
	python, err := python3()
	if err != nil {
		testkit.Missing(h.t, "no python3: there is no parent without it")
	}
	script, err := filepath.Abs("../forkserver/parent.py")
	if err != nil {
		h.t.Fatal(err)
	}
	dir := h.t.TempDir()
	socket = filepath.Join(dir, "parent.sock")
	at := filepath.Join(dir, "program.py")
	if err := os.WriteFile(at, []byte(program), 0o700); err != nil {
		h.t.Fatal(err)
	}
	parent, err = h.Client.Spawn(h.t.Context(), Process{
		ID: "warm-1", Argv: []string{python, script, socket, at, "bare"},
		Env: []string{"PATH=" + os.Getenv("PATH"), "OF_THE_PARENT=1", "HOME=" + dir},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	testkit.Eventually(h.t, "the parent listens", func() bool {
		select {
		case e := <-parent.Exited:
			h.t.Fatalf("the parent: %v: %s", e, e.Tail)
		default:
		}
		_, err := os.Stat(socket)
		return err == nil
	})
	h.program = at
	return socket, parent
}

// python3 is the interpreter itself: what is on PATH may be a script.
func python3() (string, error) {
	b, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(b)), err
}

func (h *harness) fork(id, forkSocket string, env []string, args ...string) (*Child, error) {
	return h.Client.Spawn(h.t.Context(), Process{ID: id, ForkSocket: forkSocket, Argv: append([]string{h.program}, args...), Env: env, Dir: h.t.TempDir()})
}

// surroundings says what the program finds itself in, does what it is told and
// ends as told.
const surroundings = `
import json, os, random, signal, sys, threading, time
if __name__ == "__main__":
    blocked = [int(l.split()[1], 16) for l in open("/proc/self/status") if l.startswith(("SigBlk", "SigIgn"))]
    print(json.dumps({
        "argv": sys.argv, "orig": sys.orig_argv[1:], "env": dict(os.environ), "dir": os.getcwd(), "path0": sys.path[0],
        "pid": os.getpid(), "ppid": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0),
        "file": __file__, "threads": threading.active_count(), "signals": blocked, "umask": os.umask(0o22),
        "fds": sorted(os.listdir("/proc/self/fd"))[:-1], "random": random.random(),
        "out": [os.readlink("/proc/self/fd/%d" % i).split(":")[0] for i in range(3)],
    }), flush=True)
    print("to stderr", file=sys.stderr)
    if "wait" in sys.argv:
        if os.fork() == 0:
            time.sleep(300)
        time.sleep(300)
    if "raise" in sys.argv:
        raise RuntimeError("told to")
    sys.exit(3)
`

type found struct {
	Argv, Orig, Fds, Out             []string
	Env                              map[string]string
	Dir, Path0, File                 string
	PID, PPID, Group, Session, Umask int
	Threads                          int
	Signals                          []uint64
	Random                           float64
}

func finds(t *testing.T, text string) (f found) {
	t.Helper()
	line, rest, _ := strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if !strings.Contains(rest, "to stderr") {
		t.Errorf("stderr is not in the log: %q", rest)
	}
	return f
}

// TestForkIsLikeExec: what is forked finds what it would find executed.
func TestForkIsLikeExec(t *testing.T) {
	h := start(t, time.Minute)
	forkSocket, parent := h.warmParent(surroundings)
	env := []string{"A=1", "EMPTY=", "PATH=/bin", "LIES=a=b"}
	a, err := h.fork("a", forkSocket, env, "x", "--y", "")
	if err != nil {
		t.Fatal(err)
	}
	e := waitForExit(t, a)
	if e.Code != 3 || e.PID != a.PID {
		t.Fatalf("%+v", e)
	}
	f := finds(t, e.Tail)
	python, _ := python3()
	x, err := h.Client.Spawn(t.Context(), Process{ID: "x", Argv: []string{python, h.program, "x", "--y", ""}, Env: env, Dir: f.Dir})
	if err != nil {
		t.Fatal(err)
	}
	w := finds(t, waitForExit(t, x).Tail)
	if f.PID != f.Group || f.PID != a.PID || f.PPID != h.Client.PID() || w.PPID != f.PPID || f.Session != w.Session {
		t.Errorf("pid %d group %d parent %d session %d; executed: %+v", f.PID, f.Group, f.PPID, f.Session, w)
	}
	f.Env["THAW_SUPERVISED"] = strings.Replace(f.Env["THAW_SUPERVISED"], "a", "x", 1)
	for _, c := range []struct{ description, forked, executed string }{
		{"argv", fmt.Sprint(f.Argv), fmt.Sprint(w.Argv)}, {"orig_argv", fmt.Sprint(f.Orig), fmt.Sprint(w.Orig)},
		{"env", fmt.Sprint(f.Env), fmt.Sprint(w.Env)}, {"dir", f.Dir, w.Dir}, {"sys.path[0]", f.Path0, w.Path0}, {"__file__", f.File, w.File},
		{"umask", fmt.Sprint(f.Umask), fmt.Sprint(w.Umask)}, {"threads", fmt.Sprint(f.Threads), fmt.Sprint(w.Threads)},
		{"signals", fmt.Sprint(f.Signals), fmt.Sprint(w.Signals)}, {"descriptors", fmt.Sprint(f.Fds), fmt.Sprint(w.Fds)}, {"std", fmt.Sprint(f.Out), fmt.Sprint(w.Out)},
	} {
		if c.forked != c.executed {
			t.Errorf("%s: forked %s, executed %s", c.description, c.forked, c.executed)
		}
	}
	b, err := h.fork("b", forkSocket, env, "raise")
	if err != nil {
		t.Fatal(err)
	}
	e = waitForExit(t, b)
	if e.Code != 1 || !strings.Contains(e.Tail, "RuntimeError: told to") {
		t.Errorf("%+v", e)
	}
	if g := finds(t, e.Tail); g.Random == f.Random {
		t.Error("two forks draw the same random numbers")
	}
	select {
	case e := <-parent.Exited:
		t.Errorf("the parent ended with its engine: %v", e)
	default:
	}
}

// TestForkDeaths: the parent's death is no engine's, a group's death is not the
// parent's, and the supervisor's is everybody's.
func TestForkDeaths(t *testing.T) {
	h := start(t, time.Minute)
	forkSocket, parent := h.warmParent(surroundings)
	spawn := func(id string) (*Child, []int) {
		c, err := h.fork(id, forkSocket, nil, "wait")
		if err != nil {
			t.Fatal(err)
		}
		var group []int
		testkit.Eventually(t, id+" has its child", func() bool {
			group = group[:0]
			for _, k := range listProcesses() {
				if k.PGRP == c.PID {
					group = append(group, k.PID)
				}
			}
			return len(group) == 2
		})
		return c, group
	}
	a, agroup := spawn("a")
	b, bgroup := spawn("b")
	if err := h.Client.Kill(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if e := waitForExit(t, a); e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
	for _, pid := range agroup {
		testkit.Eventually(t, "the group of a is gone", func() bool { return processGone(pid) })
	}
	syscall.Kill(parent.PID, syscall.SIGKILL)
	waitForExit(t, parent)
	select {
	case e := <-b.Exited:
		t.Fatalf("the parent's death killed b: %v", e)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := h.fork("c", forkSocket, nil, "wait"); !errors.Is(err, ErrNoParent) {
		t.Errorf("a dead parent: %v", err)
	}
	syscall.Kill(h.Client.PID(), syscall.SIGKILL)
	for _, pid := range bgroup {
		testkit.Eventually(t, "the supervisor's death is b's", func() bool { return processGone(pid) })
	}
}

// TestForkRefused: a parent that hangs, that is none, or that has had enough
// costs a bounded time, and is told from other errors.
func TestForkRefused(t *testing.T) {
	h := start(t, time.Minute)
	forkSocket, parent := h.warmParent(surroundings)
	syscall.Kill(parent.PID, syscall.SIGSTOP)
	// The supervisor goes on while a fork waits. A machine that does not reach that within
	// forkWait tries again.
	testkit.Eventually(t, "another process starts and ends beside a fork", func() (bool, string) {
		answers := make(chan error, 2)
		for range 2 {
			go func() { _, err := h.fork("a", forkSocket, nil); answers <- err }()
		}
		first := <-answers
		other, err := h.Client.Spawn(t.Context(), Process{ID: "other", Argv: []string{"/bin/true"}})
		if err != nil {
			t.Fatal(err)
		}
		e, inTime := waitForExit(t, other), len(answers) == 0
		second := <-answers
		if !errors.Is(second, ErrNoParent) || !strings.Contains(second.Error(), "no answer within") {
			t.Errorf("stopped: %v", second)
		}
		return inTime && e.Code == 0 && first != nil &&
			strings.Contains(first.Error(), "being forked already"), fmt.Sprint(e, "; the same twice: ", first)
	})
	syscall.Kill(parent.PID, syscall.SIGCONT)
	// A fork without a supervisor ends by itself.
	testkit.Eventually(t, "it forks again", func() bool {
		c, err := h.fork("a", forkSocket, nil)
		return err == nil && waitForExit(t, c).Code == 3
	})
	for _, forkSocket := range []string{filepath.Join(t.TempDir(), "none.sock"), h.program} {
		if _, err := h.fork("n", forkSocket, nil); !errors.Is(err, ErrNoParent) {
			t.Errorf("%s: %v", forkSocket, err)
		}
	}
	testkit.Eventually(t, "a parent that has had enough", func() (bool, string) {
		type forked struct {
			child *Child
			err   error
		}
		const atOnce = 8 // and 16 within 10 s are enough
		answers, refused := make(chan forked, atOnce), 0
		for i := range atOnce {
			go func() { c, err := h.fork("n"+strconv.Itoa(i), forkSocket, nil); answers <- forked{c, err} }()
		}
		for range atOnce {
			if f := <-answers; f.err == nil {
				waitForExit(t, f.child)
			} else if refused++; !errors.Is(f.err, ErrNoParent) || !strings.Contains(f.err.Error(), "are enough") {
				t.Error(f.err)
			}
		}
		return refused >= 5, fmt.Sprint(refused, " refused")
	})
	testkit.Eventually(t, "nothing is left but the parent", func() bool {
		n := 0
		for _, k := range listProcesses() {
			if k.PPID == h.Client.PID() {
				n++
			}
		}
		return n == 1
	})
}

// TestForkOnlyForTheSupervisor: another process of the same user is refused, and
// nonsense does not end the parent.
func TestForkOnlyForTheSupervisor(t *testing.T) {
	h := start(t, time.Minute)
	forkSocket, _ := h.warmParent(surroundings)
	st, err := os.Stat(forkSocket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	send := func(line string, fds ...int) string {
		conn, err := net.Dial("unix", forkSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(testTimeout))
		var oob []byte
		if len(fds) > 0 {
			oob = syscall.UnixRights(fds...)
		}
		conn.(*net.UnixConn).WriteMsgUnix([]byte(line+"\n"), oob, nil)
		b := make([]byte, 1<<16)
		n, _ := conn.Read(b)
		return string(b[:n])
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	for _, c := range []struct {
		line, want string
		fds        []int
	}{
		{`{"op":"fork","argv":["x"],"env":[],"dir":"/"}`, "not to the one that asked", []int{fd, fd, fd}},
		{`{"op":"fork","argv":["x"],"env":[],"dir":"/"}`, "0 descriptors", nil},
		{`{"op":"fork","argv":"x","env":[],"dir":"/"}`, "must be lists", []int{fd, fd, fd}},
		{`{"op":"fork","argv":[],"env":[],"dir":"/"}`, "no argv", []int{fd, fd, fd}},
		{`{"op":"fork","argv":["x"],"env":[1],"dir":"/"}`, "must be lists", []int{fd, fd, fd}},
		{`{"op":"dance"}`, "no such op", nil}, {`[]`, "want an object", nil}, {`{`, "error", nil}, {``, "error", nil},
		{`{"op":"facts"}`, `"forks": 1`, nil},
	} {
		if got := send(c.line, c.fds...); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", c.line, got)
		}
	}
	if c, err := h.fork("good", forkSocket, nil); err != nil || waitForExit(t, c).Code != 3 {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := h.Client.Spawn(t.Context(), Process{ID: "dir", ForkSocket: forkSocket, Argv: []string{h.program}, Dir: "/no/such/folder"}); err == nil || errors.Is(err, ErrNoParent) {
		t.Errorf("no folder: %v", err)
	}
}
