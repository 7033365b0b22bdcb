package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/testkit"
)

// engineScript does what an engine does, and what a hostile checkpoint would have it do.
const engineScript = `
import os, signal, socket, sys
def attempt(what, f):
    try:
        f()
        print(what, "yes", flush=True)
    except Exception as e:
        print(what, "no", type(e).__name__, flush=True)
def connect(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.settimeout(20)
    if not s.recv(1):
        raise ConnectionError("refused")
def listen():
    with socket.create_server(("127.0.0.1", 0)) as s:
        socket.create_connection(s.getsockname())
model, scratch, secret, other, control, agent = sys.argv[1:7]
attempt("model", lambda: open(model + "/weights").read())
attempt("import", lambda: __import__("decimal"))
attempt("scratch", lambda: open(scratch + "/x", "w").write("x"))
attempt("shm", lambda: (open("/dev/shm/thaw-test-" + str(os.getpid()), "w").write("x"), os.unlink("/dev/shm/thaw-test-" + str(os.getpid()))))
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("proc", lambda: open("/proc/self/status").read())
attempt("port", listen)
attempt("fork", lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0))
attempt("secret", lambda: open(secret).read())
attempt("other", lambda: open(other + "/weights").read())
attempt("shadow", lambda: open("/etc/shadow").read())
attempt("write", lambda: open(model + "/weights", "w"))
attempt("control", lambda: connect(control))
attempt("environ", lambda: open("/proc/" + agent + "/environ").read())
attempt("signal", lambda: os.kill(int(agent), 0))
print("root", os.getuid() == 0)
sys.exit(3)
`

// TestConfine: a confined process, executed or forked, does what an engine has to do, and
// reaches no secret, no other model, neither its agent nor its supervisor. The same
// process without a plan reaches them all.
func TestConfine(t *testing.T) {
	if why := confine.Unavailable(); why != "" {
		testkit.Missing(t, why)
	}
	h := start(t, testTimeout)
	python, err := python3()
	if err != nil {
		testkit.Missing(t, "no python3")
	}
	// Below a folder that is closed to other users, as below /root.
	data := filepath.Join(h.t.TempDir(), "closed")
	write := func(path, text string) string {
		t.Helper()
		path = filepath.Join(data, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := write("admin-token", "sk-secret")
	model, other := filepath.Dir(write("models/a/weights", "a")), filepath.Dir(write("models/b/weights", "b"))
	program := write("program/engine.py", engineScript)
	socket, _ := h.warmParent("from runpy import run_path\nimport sys\nrun_path(" + fmt.Sprintf("%q", program) + ", run_name='__main__')\n")
	users := []int{0} // that of thaw
	if confine.OwnUsers() {
		users = []int{confine.FirstUser + 77, 0}
	}
	// Linux 6.12 denies signals to processes outside, also those of root.
	version, _, _ := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	for _, how := range []string{"executed", "forked"} {
		for i := range 2 * len(users) {
			confined, user := i%2 == 0, users[i/2]
			id := fmt.Sprint(how, "-", confined, "-", user)
			scratch := filepath.Join(data, "scratch", id)
			args := []string{model, scratch, secret, other, h.sock, fmt.Sprint(os.Getpid())}
			p := Process{ID: id, Argv: append([]string{python, program}, args...), Env: []string{"PATH=/usr/bin:/bin", "HOME=" + scratch}, Dir: filepath.Dir(program), Scratch: scratch}
			if how == "forked" {
				p.ForkSocket, p.Argv = socket, append([]string{h.program}, args...)
			}
			if confined {
				p.Confine = &confine.Plan{Read: append(confine.System(), model, filepath.Dir(program), filepath.Dir(h.program), filepath.Dir(filepath.Dir(python))), Write: []string{scratch}, User: user}
			}
			t.Run(id, func(t *testing.T) {
				c, err := h.Spawn(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				e := waitForExit(t, c)
				got := map[string]string{}
				for line := range strings.Lines(e.Tail) {
					if f := strings.Fields(line); len(f) >= 2 {
						got[f[0]] = f[1]
					}
				}
				for _, what := range []string{"model", "import", "scratch", "shm", "null", "proc", "port", "fork"} {
					if got[what] != "yes" {
						t.Errorf("an engine needs %s: %q", what, got[what])
					}
				}
				want := map[bool]string{true: "no", false: "yes"}[confined]
				for _, what := range []string{"secret", "other", "write", "environ"} {
					if what == "environ" && user == 0 && len(users) == 2 {
						continue // CAP_PERFMON reads it; a thaw with that gives engines users of their own
					}
					if got[what] != want {
						t.Errorf("%s: %q, want %q", what, got[what], want)
					}
				}
				if got["control"] != "no" {
					t.Error("it has processes started by its supervisor")
				}
				if len(users) == 2 && (got["root"] != map[bool]string{true: "False", false: "True"}[confined && user != 0] || got["shadow"] != want) {
					t.Errorf("root %s, shadow %s", got["root"], got["shadow"])
				}
				if (user != 0 || version >= 6) && got["signal"] != want {
					t.Errorf("signal %s, want %s", got["signal"], want)
				}
				if e.Code != 3 || t.Failed() {
					t.Errorf("%s\n%s", e, e.Tail)
				}
				if _, err := os.Stat(scratch); err == nil {
					t.Error("its scratch folder is left")
				}
			})
			os.WriteFile(filepath.Join(model, "weights"), []byte("a"), 0o600)
		}
	}
	// One that cannot be confined is not started.
	if _, err := h.Spawn(t.Context(), Process{ID: "closed", Argv: []string{"/bin/true"}, Dir: data, Confine: &confine.Plan{}}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a program that the plan does not list: %v", err)
	}
}

// TestConfinedDoesNotTrace: a confined process of the supervisor's user reads neither the
// memory nor the environment of the supervisor: of its threads, one shares the confinement
// of the process, which Landlock lets trace it.
func TestConfinedDoesNotTrace(t *testing.T) {
	if why := confine.Unavailable(); why != "" {
		testkit.Missing(t, why)
	}
	dir, err := os.MkdirTemp("", "trace") // not t.TempDir, which only this user opens
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	program, data := filepath.Join(dir, "supervisor.test"), filepath.Join(dir, "data")
	if err := errors.Join(os.WriteFile(program, b, 0o755), os.Chmod(dir, 0o755), os.Mkdir(data, 0o700)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(data, "s")
	c := exec.Command(program, "test-supervisor", socket, data, testTimeout.String())
	c.Env = []string{fastRaceExit, "SECRET=of-the-supervisor"}
	if os.Getuid() == 0 { // root may trace all
		const nobody = 65534
		if err := os.Chown(data, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Signal(syscall.SIGTERM)
	var h *Client
	testkit.Eventually(t, "the supervisor", func() bool {
		h, err = Connect(t.Context(), socket)
		return err == nil
	})
	defer h.Close()
	const look = `for f in /proc/$PPID/environ /proc/$PPID/task/*/environ; do grep -aq SECRET "$f" 2>/dev/null && echo "read $f"; done; echo looked`
	for _, confined := range []bool{false, true} {
		p := Process{ID: fmt.Sprint("spy-", confined), Argv: []string{"/bin/sh", "-c", look}, Env: []string{"PATH=/usr/bin:/bin"}}
		if confined {
			p.Confine = &confine.Plan{Read: confine.System()}
		}
		child, err := h.Spawn(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		e := waitForExit(t, child)
		if !strings.Contains(e.Tail, "looked") || strings.Contains(e.Tail, "read ") == confined {
			t.Errorf("confined %v: %s %s", confined, e, e.Tail)
		}
	}
}
