package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/testkit"
)

// The test binary is also the supervisor, an agent, and what the supervisor runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "test-supervisor": // SOCKET DIR ORPHAN
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			orphan, _ := time.ParseDuration(os.Args[4])
			if err := Run(ctx, Options{Socket: os.Args[2], Dir: os.Args[3], Orphan: orphan, Grace: 200 * time.Millisecond}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Exit(0)
		case "test-agent": // SOCKET: spawns one and waits to be killed
			c, err := Connect(context.Background(), os.Args[2])
			if err != nil {
				os.Exit(1)
			}
			ch, err := c.Spawn(context.Background(), Process{ID: "left", Argv: []string{os.Args[0], "test-run", "wait"}, Meta: json.RawMessage(`{"note":7}`)})
			if err != nil {
				os.Exit(2)
			}
			fmt.Println(ch.PID)
			select {}
		case "test-run":
			os.Exit(runTestProgram(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// fastRaceExit: a program with the race detector otherwise takes a second to exit.
const fastRaceExit = "GORACE=atexit_sleep_ms=0"

// runTestProgram is what the tests' processes do.
func runTestProgram(args []string) int {
	child := func(attr *syscall.SysProcAttr, description ...string) {
		c := exec.Command(os.Args[0], append([]string{"test-run"}, description...)...)
		c.Stdout, c.Stderr, c.SysProcAttr = os.Stdout, os.Stderr, attr
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	switch args[0] {
	case "exit": // CODE TEXT
		n, _ := strconv.Atoi(args[1])
		fmt.Println(strings.Join(args[2:], " "))
		return n
	case "wait":
		fmt.Println("pid", os.Getpid())
		time.Sleep(5 * time.Minute)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		fmt.Println("pid", os.Getpid())
		time.Sleep(5 * time.Minute)
	case "parent": // with a child in the group that does not heed SIGTERM
		child(nil, "stubborn")
		return runTestProgram([]string{"wait"})
	case "daemon": // with a grandchild that left group and session
		child(nil, "double")
		return runTestProgram([]string{"wait"})
	case "double":
		child(&syscall.SysProcAttr{Setsid: true}, "stubborn")
	case "self":
		var in [1]byte
		n, err := os.Stdin.Read(in[:])
		fmt.Println("stdin", n, err)
		fmt.Println("group", syscall.Getpgrp() == os.Getpid())
		fmt.Println("env", len(os.Environ()), os.Getenv("A"))
		wd, _ := os.Getwd()
		fmt.Println("dir", wd)
	case "flood":
		for i := range 200_000 {
			fmt.Println("line", i, strings.Repeat("x", 80))
		}
	}
	return 0
}

type harness struct {
	program   string // of its warm parent
	t         *testing.T
	dir, sock string
	*Client
}

func start(t *testing.T, orphan time.Duration) *harness {
	t.Helper()
	h := &harness{t: t, dir: t.TempDir()}
	h.sock = filepath.Join(h.dir, "s")
	h.Client = h.ensure(orphan)
	t.Cleanup(func() {
		// Whatever the test did: nothing is left.
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if c, err := Connect(ctx, h.sock); err == nil {
			if err := c.End(ctx, 50*time.Millisecond); err != nil {
				t.Error(err)
			}
			testkit.Eventually(t, "the present supervisor is gone", func() bool { return processGone(c.PID()) })
		}
		h.Client.Close()
		testkit.Eventually(t, "no supervisor", func() bool { return processGone(h.PID()) })
	})
	return h
}

func (h *harness) ensure(orphan time.Duration) *Client {
	h.t.Helper()
	c, err := h.tryEnsure(orphan)
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// tryEnsure is ensure for other goroutines than the test's own.
func (h *harness) tryEnsure(orphan time.Duration) (*Client, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), testTimeout)
	defer cancel()
	return Ensure(ctx, Start{Exe: exe, Args: []string{"test-supervisor", h.sock, h.dir, orphan.String()}, Socket: h.sock, Dir: h.dir, Env: []string{fastRaceExit}})
}

func (h *harness) run(id string, args ...string) *Child {
	h.t.Helper()
	exe, _ := os.Executable()
	ch, err := h.Spawn(h.t.Context(), Process{ID: id, Argv: append([]string{exe, "test-run"}, args...), Env: []string{"A=b", fastRaceExit}})
	if err != nil {
		h.t.Fatal(err)
	}
	return ch
}

func waitForExit(t *testing.T, c *Child) Exit {
	t.Helper()
	select {
	case e := <-c.Exited:
		return e
	case <-time.After(testTimeout):
		t.Fatal("no exit")
		return Exit{}
	}
}

// testTimeout bounds the wait for what must happen, on whatever machine.
const testTimeout = time.Minute

// processGone reports whether a process does not exist or is a zombie.
func processGone(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) && runtime.GOOS == "linux"
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(after, "Z")
}

// pids that a log tells of, once there are n.
func (h *harness) pids(c *Child, n int) (out []int) {
	h.t.Helper()
	testkit.Eventually(h.t, "pids in the log", func() bool {
		b, _ := os.ReadFile(c.Log)
		out = nil
		for line := range strings.SplitSeq(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "pid "); ok {
				p, _ := strconv.Atoi(v)
				out = append(out, p)
			}
		}
		return len(out) >= n
	})
	return out
}

func TestExits(t *testing.T) {
	h := start(t, time.Minute)
	e := waitForExit(t, h.run("a", "exit", "3", "last words"))
	if e.Code != 3 || e.Signal != 0 || !strings.Contains(e.Tail, "last words") || e.String() != "exit code 3" {
		t.Errorf("%+v", e)
	}
	if s := (Exit{Code: 137}).String(); s != "exit code 137 (of a shell: signal 9, killed)" {
		t.Error(s)
	}
	c := h.run("b", "wait")
	h.pids(c, 1)
	if err := h.Signal(t.Context(), "b", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := waitForExit(t, c); e.Code != -1 || e.Signal != syscall.SIGTERM {
		t.Errorf("%+v", e)
	}
	ps, err := h.List(t.Context())
	if err != nil || len(ps) != 2 || ps[0].ID != "a" || ps[0].Exit == nil || ps[0].Exit.Code != 3 {
		t.Fatalf("%+v %v", ps, err)
	}
	for _, id := range []string{"a", "b"} {
		if err := h.Forget(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if ps, _ := h.List(t.Context()); len(ps) != 0 {
		t.Errorf("not forgotten: %v", ps)
	}
	if err := h.Signal(t.Context(), "a", syscall.SIGTERM); err == nil {
		t.Error("signal to an unknown process")
	}
	// The id is free again.
	if e := waitForExit(t, h.run("a", "exit", "0")); e.Code != 0 {
		t.Errorf("%+v", e)
	}
}

func TestProcessEnvironment(t *testing.T) {
	h := start(t, time.Minute)
	want := fmt.Sprintf("stdin 0 EOF\ngroup true\nenv 3 b\ndir %s\n", h.dir)
	if e := waitForExit(t, h.run("a", "self")); e.Tail != want {
		t.Errorf("%q\nwant %q", e.Tail, want)
	}
	st, err := os.Stat(h.sock)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v %v", st.Mode(), err)
	}
}

func TestLogIsBounded(t *testing.T) {
	h := start(t, time.Minute)
	c := h.run("a", "flood") // about 19 MB
	e := waitForExit(t, c)
	if e.Code != 0 || !strings.Contains(e.Tail, "line 199999 ") || len(e.Tail) > tailBytes {
		t.Errorf("code %d, tail of %d bytes: %.80q", e.Code, len(e.Tail), e.Tail)
	}
	for _, p := range []string{c.Log, c.Log + ".1"} {
		st, err := os.Stat(p)
		if err != nil || st.Size() > LogBytes || st.Size() == 0 {
			t.Errorf("%s: %v %v", p, st, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	h := start(t, time.Minute)
	h.run("busy", "wait")
	for name, p := range map[string]Process{
		"no argv":    {ID: "x"},
		"no id":      {Argv: []string{"/bin/true"}},
		"bad id":     {ID: "../x", Argv: []string{"/bin/true"}},
		"no program": {ID: "x", Argv: []string{"/nonexistent/engine"}},
		"no folder":  {ID: "x", Argv: []string{"/bin/true"}, Dir: "/nonexistent"},
		"NUL":        {ID: "x", Argv: []string{"/bin/true", "a\x00b"}},
		"taken":      {ID: "busy", Argv: []string{"/bin/true"}},
		"too long":   {ID: "x", Argv: []string{"/bin/true", strings.Repeat("x", MaxLine)}},
	} {
		if _, err := h.Spawn(t.Context(), p); err == nil {
			t.Errorf("%s: spawned", name)
		} else {
			t.Log(name, "->", err)
		}
	}
	if err := h.Forget(t.Context(), "busy"); err == nil {
		t.Error("forgot a running process")
	}
	// The first child still hears of its end although its id was asked for again.
	if err := h.Kill(t.Context(), "busy"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the exit is listed", func() bool {
		ps, err := h.List(t.Context())
		return err == nil && len(ps) == 1 && ps[0].Exit != nil && ps[0].Exit.Signal == syscall.SIGKILL
	})
}

// One that ends between List and Follow is not missed.
func TestFollowAfterEnd(t *testing.T) {
	h := start(t, time.Minute)
	other := h.ensure(time.Minute)
	defer other.Close()
	c := h.run("a", "wait")
	ps, err := other.List(t.Context())
	if err != nil || len(ps) != 1 {
		t.Fatal(ps, err)
	}
	if err := h.Kill(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	waitForExit(t, c)
	testkit.Eventually(t, "the other client heard", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.exits) == 1
	})
	if e := waitForExit(t, other.Follow(ps[0])); e.Signal != syscall.SIGKILL || e.OOM {
		t.Errorf("%+v", e)
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for i := range keepLogs + 10 {
		p := filepath.Join(dir, fmt.Sprintf("r%d.log", i))
		if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, old, old.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	pruneLogs(dir, map[string]bool{filepath.Join(dir, "r0.log"): true})
	left, _ := os.ReadDir(dir)
	if len(left) != keepLogs+1 {
		t.Errorf("%d files left", len(left))
	}
	for name, want := range map[string]bool{"r0.log": true, "r1.log": false, "r9.log": false, "r10.log": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// vLLM's EngineCore lives on after its API server.
func TestGroupDiesWithItsLeader(t *testing.T) {
	h := start(t, time.Minute)
	c := h.run("a", "parent")
	pids := h.pids(c, 2)
	syscall.Kill(c.PID, syscall.SIGKILL)
	if e := waitForExit(t, c); e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
	for _, p := range pids {
		testkit.Eventually(t, "no process is left", func() bool { return processGone(p) })
	}
}

func TestStraysAreReaped(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no child subreaper here")
	}
	h := start(t, time.Minute)
	other := h.run("b", "daemon")
	others := h.pids(other, 2)
	c := h.run("a", "daemon")
	pids := h.pids(c, 2)
	if err := h.Kill(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	waitForExit(t, c)
	for _, p := range pids {
		testkit.Eventually(t, "the grandchild that left is gone", func() bool { return processGone(p) })
	}
	for _, p := range others {
		if processGone(p) {
			t.Errorf("%d of the other engine was killed too", p)
		}
	}
}

func TestAgentKilledAndReplaced(t *testing.T) {
	h := start(t, time.Minute)
	exe, _ := os.Executable()
	agent := exec.Command(exe, "test-agent", h.sock)
	out, err := agent.StdoutPipe()
	if err != nil || agent.Start() != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	agent.Process.Kill()
	agent.Wait()
	h.Client.Close()

	c := h.ensure(time.Minute)
	defer c.Close()
	if c.PID() != h.PID() {
		t.Fatal("another supervisor")
	}
	ps, err := c.List(t.Context())
	if err != nil || len(ps) != 1 || ps[0].ID != "left" || ps[0].Exit != nil || strconv.Itoa(ps[0].PID) != strings.TrimSpace(line) {
		t.Fatalf("%+v %v, agent said %q", ps, err, line)
	}
	if string(ps[0].Meta) != `{"note":7}` {
		t.Errorf("meta %s", ps[0].Meta)
	}
	ch := c.Follow(ps[0])
	if err := c.Kill(t.Context(), "left"); err != nil {
		t.Fatal(err)
	}
	if e := waitForExit(t, ch); e.Signal != syscall.SIGKILL || !processGone(ps[0].PID) {
		t.Errorf("%+v", e)
	}
	// A later Follow has the exit at once.
	ps, _ = c.List(t.Context())
	if e := waitForExit(t, c.Follow(ps[0])); e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
}

func TestOrphanEndsEverything(t *testing.T) {
	h := start(t, 3*time.Second) // within which its agent has come, on any machine
	a, b := h.run("a", "parent"), h.run("b", "stubborn")
	pids := append(h.pids(a, 2), h.pids(b, 1)...)
	// With an agent it stays.
	select {
	case <-h.Done():
		t.Fatal("ended with its agent there")
	case <-time.After(4 * time.Second):
	}
	h.Client.Close()
	for _, p := range append(pids, h.PID()) {
		testkit.Eventually(t, "everything has ended", func() bool { return processGone(p) })
	}
	if _, err := os.Lstat(h.sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestConnectWhileItEnds: an agent that comes while the supervisor ends gets the next one.
func TestConnectWhileItEnds(t *testing.T) {
	h := start(t, time.Minute)
	stubborn := h.run("stubborn", "stubborn")
	h.pids(stubborn, 1)
	old := h.Client
	ended := make(chan error, 1)
	go func() { ended <- old.End(context.Background(), time.Second) }()
	testkit.Eventually(t, "the supervisor ends", func() bool {
		_, err := old.Spawn(context.Background(), Process{ID: "late", Argv: []string{os.Args[0], "test-run", "exit", "0"}})
		return errors.Is(err, ErrLost) || err != nil && strings.Contains(err.Error(), "the supervisor is ending")
	})
	c := h.ensure(time.Minute)
	if c.PID() == old.PID() {
		t.Error("the supervisor that ends was used")
	}
	if _, err := c.List(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !processGone(stubborn.PID) {
		t.Error("its process runs on")
	}
}

func TestSupervisorTerminated(t *testing.T) {
	h := start(t, time.Minute)
	a := h.run("a", "stubborn")
	pids := h.pids(a, 1)
	syscall.Kill(h.PID(), syscall.SIGTERM)
	if e := waitForExit(t, a); e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
	testkit.Eventually(t, "all gone", func() bool { return processGone(pids[0]) && processGone(h.PID()) })
}

func TestSupervisorKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no death signal here")
	}
	h := start(t, time.Minute)
	a := h.run("a", "parent")
	pids := h.pids(a, 2)
	syscall.Kill(h.PID(), syscall.SIGKILL)
	if e := waitForExit(t, a); !e.Lost {
		t.Errorf("%+v", e)
	}
	for _, p := range pids {
		testkit.Eventually(t, "no process is left", func() bool { return processGone(p) })
	}
	if _, err := h.List(t.Context()); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	// A new one finds a stale socket and a free lock.
	c := h.ensure(time.Minute)
	if c.PID() == h.PID() {
		t.Error("the same supervisor")
	}
	if err := c.End(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// Supervisor and agent killed at once: the next supervisor clears up.
func TestSupervisorAndAgentKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sessions are not listed here")
	}
	h := start(t, time.Minute)
	a := h.run("a", "parent")
	pids := h.pids(a, 2)
	h.Client.Close()
	syscall.Kill(h.PID(), syscall.SIGKILL)
	testkit.Eventually(t, "the leader follows the supervisor", func() bool { return processGone(pids[0]) || processGone(pids[1]) })
	c := h.ensure(time.Minute)
	defer c.End(t.Context(), 0)
	for _, p := range pids {
		testkit.Eventually(t, "no process is left", func() bool { return processGone(p) })
	}
}

func TestOneSupervisorPerFolder(t *testing.T) {
	dir := t.TempDir()
	h := &harness{t: t, dir: dir, sock: filepath.Join(dir, "s")}
	var wg sync.WaitGroup
	clients, errs := make([]*Client, 4), make([]error, 4)
	for i := range clients {
		wg.Go(func() { clients[i], errs[i] = h.tryEnsure(time.Minute) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if c.PID() != clients[0].PID() {
			t.Errorf("supervisors %d and %d", c.PID(), clients[0].PID())
		}
	}
	if err := Run(t.Context(), Options{Socket: h.sock, Dir: dir}); !errors.Is(err, ErrRunning) {
		t.Errorf("second supervisor: %v", err)
	}
	if err := clients[0].End(t.Context(), 0); err != nil {
		t.Error(err)
	}
	for _, c := range clients[1:] {
		<-c.Done()
	}
	testkit.Eventually(t, "gone", func() bool { return processGone(clients[0].PID()) })
}

func TestStaleSocketAndLongPath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("long socket paths need /proc")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, dir: dir, sock: filepath.Join(dir, "supervisor.sock")}
	short, done, err := jsonsocket.ShortPath(h.sock)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	done()
	if _, err := os.Lstat(h.sock); err != nil {
		t.Fatal("no stale socket to begin with")
	}
	c := h.ensure(time.Minute)
	if err := c.End(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	// What is no socket is not ours to remove.
	if err := os.WriteFile(h.sock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := listenUnix(h.sock); err == nil {
		ln.Close()
		t.Error("a file was taken for a socket")
	}
}

func TestEnsureError(t *testing.T) {
	dir := t.TempDir()
	exe, _ := os.Executable()
	_, err := Ensure(t.Context(), Start{Exe: exe, Args: []string{"test-run", "exit", "1", "why not"}, Socket: filepath.Join(dir, "s"), Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "why not") {
		t.Error(err)
	}
	if _, err := Ensure(t.Context(), Start{Exe: filepath.Join(dir, "none"), Socket: filepath.Join(dir, "s"), Dir: dir}); err == nil {
		t.Error("started nothing")
	}
}

// Garbage on the socket closes only that connection.
func TestBadMessages(t *testing.T) {
	h := start(t, time.Minute)
	for _, s := range []string{"}\n", "{\"seq\":1}\n", "{\"seq\":1,\"op\":\"spawn\"}\n", strings.Repeat("x", MaxLine+1), "{\"seq\":1,\"op\":\"signal\",\"id\":\"none\",\"signal\":99}\n"} {
		conn, err := net.Dial("unix", h.sock)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(testTimeout))
		conn.Write([]byte(s))
		conn.Close()
	}
	if e := waitForExit(t, h.run("a", "exit", "0")); e.Code != 0 {
		t.Errorf("%+v", e)
	}
}

func FuzzProcessID(f *testing.F) {
	f.Add("r1")
	f.Add("../x")
	f.Fuzz(func(t *testing.T, id string) {
		if validID.MatchString(id) && (filepath.Base(id) != id || id == "." || id == "..") {
			t.Errorf("%q leaves the folder", id)
		}
	})
}

func BenchmarkSpawn(b *testing.B) {
	dir := b.TempDir()
	exe, _ := os.Executable()
	sock := filepath.Join(dir, "s")
	c, err := Ensure(b.Context(), Start{Exe: exe, Args: []string{"test-supervisor", sock, dir, "1m"}, Socket: sock, Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer c.End(context.Background(), 0)
	for b.Loop() {
		ch, err := c.Spawn(b.Context(), Process{ID: "x", Argv: []string{"/bin/true"}})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		<-ch.Exited
		b.StartTimer()
	}
}
