//go:build linux

package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/testkit"
)

// pyEngine is a small HTTP engine in Python. Its program is called vllm, beside a nearly
// empty package of that name.
const pyEngine = `
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def answer(self):
        n = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(n)
        b = json.dumps({"object": "text_completion", "choices": [{"index": 0, "text": "hi", "message": {"content": "hi"},
                        "finish_reason": "length"}], "usage": {"completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(b)))
        self.end_headers()
        self.wfile.write(b)
    do_GET = do_POST = answer

if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
`

// inPlace is a stager that copies nothing.
type inPlace struct{}

func (inPlace) Stage(_ context.Context, req replica.StageRequest, _ func(have, total functions.Bytes)) (replica.Checkpoint, error) {
	return replica.Checkpoint{Path: req.Source}, nil
}

// pyVLLM installs the engine and returns its program.
func pyVLLM(t *testing.T) string {
	t.Helper()
	b, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		testkit.Missing(t, "no python3: there is no warm interpreter without it")
	}
	// Python searches the program's folder first for imports.
	bin := t.TempDir()
	program := filepath.Join(bin, "serve-vllm")
	if err := os.Mkdir(filepath.Join(bin, "vllm"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		program: "#!" + strings.TrimSpace(string(b)) + "\n" + pyEngine,
		filepath.Join(bin, "vllm", "__init__.py"): "__version__ = '0.0.1'\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return program
}

// newForkServerLab starts an agent with that engine.
func newForkServerLab(t *testing.T, dir, program string, edit func(*Options)) *lab {
	return newLab(t, dir, func(o *Options) {
		o.Warm, o.Stager = WarmOn, inPlace{}
		o.Environ = func() []string {
			return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "THAW_ENGINE_VLLM=" + program, "PYTHONDONTWRITEBYTECODE=1"}
		}
		if edit != nil {
			edit(o)
		}
	})
}

func (l *lab) wake(id string, env map[string]string) functions.ReplicaStatus {
	l.t.Helper()
	m := functions.NewModel()
	m.Spec.Engine, m.Spec.Source, m.Spec.Env = functions.EngineVLLM, l.dir, env
	m.Spec.Resources.Memory = 64 << 20
	if _, err := l.Load(l.t.Context(), functions.LoadRequest{ID: id, Team: "default", Model: "x", Spec: m.Spec, Epoch: 1}); err != nil {
		l.t.Fatal(err)
	}
	return l.ready(id)
}

func (l *lab) ready(id string) (st functions.ReplicaStatus) {
	l.t.Helper()
	seen := false
	testkit.Eventually(l.t, id+" is READY", func() (bool, string) {
		d, err := l.Heartbeat()
		i := slices.IndexFunc(d.Models, func(m functions.ReplicaStatus) bool { return m.ID == id })
		switch {
		case i >= 0 && d.Models[i].State.Over():
			l.t.Fatalf("%s: %+v", id, d.Models[i])
		case err == nil && i < 0 && seen:
			l.t.Fatalf("%s was in a heartbeat and is not any more: %+v", id, d.Models)
		case i >= 0:
			st, seen = d.Models[i], true
		}
		return st.State == functions.Ready, fmt.Sprintf("%+v", d.Models)
	})
	return st
}

// parent waits for the only fork server and returns it.
func (l *lab) parent() (w functions.WarmParent, pid int) {
	l.t.Helper()
	l.until("a warm interpreter is ready", func() bool {
		d, err := l.Heartbeat()
		if err != nil || len(d.Warm) != 1 || d.Warm[0].State != "ready" {
			return false
		}
		w = d.Warm[0]
		l.forkServers.mu.Lock()
		defer l.forkServers.mu.Unlock()
		for _, p := range l.forkServers.parents {
			pid = p.child.PID
		}
		return true
	})
	return w, pid
}

// TestWarm covers the life of a fork server.
func TestWarm(t *testing.T) {
	t.Parallel()
	program := pyVLLM(t)
	dir := t.TempDir()
	l := newForkServerLab(t, dir, program, func(o *Options) { o.KeepEngines = true })
	// The first start waits for the fork server and is its first fork.
	if st := l.wake("a", nil); st.Start != functions.StartWarm {
		t.Errorf("%s: %s", st.Start, st.StartNote)
	}
	w, pid := l.parent()
	if !w.Reserved {
		t.Error("its memory is offered to replicas")
	}
	if d, _ := l.Heartbeat(); w.Version != "0.0.1" || w.Memory <= 0 || d.Memory.Used != w.Memory+64<<20 {
		t.Errorf("%+v, memory %+v", w, d.Memory)
	}
	// Killing the fork server ends no engine, and another one is started.
	syscall.Kill(pid, syscall.SIGKILL)
	l.until("another parent", func() bool { _, now := l.parent(); return now != pid })
	if l.state("a") != functions.Ready {
		t.Error("the parent's death was its engine's")
	}
	if st := l.wake("b", nil); st.Start != functions.StartWarm {
		t.Errorf("%s: %s", st.Start, st.StartNote)
	}
	// An environment with other imports gets its own fork server or a plain start.
	if st := l.wake("c", map[string]string{"PYTHONPATH": "/elsewhere"}); st.Start != functions.StartWarm {
		t.Logf("another environment: %s: %s", st.Start, st.StartNote)
	}
	// The next agent adopts it.
	_, pid = l.parent2()
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	again := newForkServerLab(t, dir, program, nil)
	again.until("adopted", func() bool { _, now := again.parent2(); return now == pid })
	if again.ready("b").Start != functions.StartWarm {
		t.Error("how it was started is forgotten")
	}
	// A changed installation replaces it.
	if err := os.WriteFile(filepath.Join(filepath.Dir(program), "vllm", "__init__.py"), []byte("__version__ = '0.0.2'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again.wake("d", nil)
	again.until("one of the new version", func() bool {
		d, _ := again.Heartbeat()
		for _, w := range d.Warm {
			if w.State == "ready" && w.Version == "0.0.2" {
				return true
			}
		}
		return false
	})
}

// TestParentIsShared: a fork server prepared for a model that is not confined yet is that of
// the confined engines of all models.
func TestParentIsShared(t *testing.T) {
	program := pyVLLM(t)
	c, s := &confinement{}, &forkServers{}
	command := func(home string, env map[string]string) engine.Command {
		cmd := engine.Command{Engine: functions.EngineVLLM, Argv: []string{program}, Env: []string{"PATH=/bin", "USER=root"}}
		for k, v := range env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		if home != "" {
			c.setEnv(&cmd, engine.Request{Spec: functions.ModelSpec{Env: env}}, home)
		}
		return cmd
	}
	ids := map[string]string{}
	for name, cmd := range map[string]engine.Command{"prepared": command("", nil), "confined": command("/a", nil), "another": command("/b", nil), "differs": command("/a", map[string]string{"PYTHONPATH": "/x"})} {
		spec, note := s.specFor(cmd)
		if spec == nil {
			t.Fatal(note)
		}
		ids[name] = spec.id
	}
	if ids["prepared"] != ids["confined"] || ids["another"] != ids["confined"] || ids["differs"] == ids["confined"] {
		t.Errorf("%v", ids)
	}
}

// TestForkServerIsEvicted: a fork server in unused memory ends when replicas need that memory.
func TestForkServerIsEvicted(t *testing.T) {
	t.Parallel()
	const node = 8 << 30
	l := newForkServerLab(t, t.TempDir(), pyVLLM(t), func(o *Options) { o.Warm, o.Memory = WarmAuto, node })
	l.wake("a", nil)
	if w, _ := l.parent(); w.Reserved || w.Memory < 2<<20 {
		t.Errorf("%+v", w)
	}
	m := functions.NewModel()
	m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, l.dir
	m.Spec.Resources.Memory = node - 64<<20 - 1<<20 // leaves 1 MiB beside a's memory
	if _, err := l.Load(t.Context(), functions.LoadRequest{ID: "b", Team: "default", Model: "y", Spec: m.Spec, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	l.ready("b")
	l.forkServers.wake.Set()
	l.until("no parent", func() bool {
		d, err := l.Heartbeat()
		return err == nil && d.Memory.Used == node-1<<20
	})
}

// parent2 returns the pid of the fork server without PYTHONPATH, among others.
func (l *lab) parent2() (ready bool, pid int) {
	l.forkServers.mu.Lock()
	defer l.forkServers.mu.Unlock()
	for _, p := range l.forkServers.parents {
		if !strings.Contains(strings.Join(p.environ, "\n"), "PYTHONPATH=") {
			_, ready := p.Facts()
			return ready, p.child.PID
		}
	}
	return false, 0
}

// TestForkServerHangs: if a fork server does not respond, the start goes on without it.
func TestForkServerHangs(t *testing.T) {
	t.Parallel()
	l := newForkServerLab(t, t.TempDir(), pyVLLM(t), nil)
	l.wake("a", nil)
	_, pid := l.parent()
	syscall.Kill(pid, syscall.SIGSTOP)
	st := l.wake("b", nil)
	if st.Start != functions.StartPlain || !strings.Contains(st.StartNote, "no answer within") {
		t.Errorf("%s: %s", st.Start, st.StartNote)
	}
	l.until("it is replaced", func() bool { ready, now := l.parent2(); return ready && now != pid })
}

// TestForkServerDisabled: where no fork server is possible or wanted, the start is plain and its note
// has the reason.
func TestForkServerDisabled(t *testing.T) {
	t.Parallel()
	broken := pyVLLM(t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(broken), "vllm", "__init__.py"), []byte("import no_such_module\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "vllm")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+pyVLLM(t)+" \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, program string
		mode          WarmMode
		note          string
	}{
		{"off", pyVLLM(t), WarmOff, ""},
		{"auto, and little memory", pyVLLM(t), WarmAuto, "more than an eighth"},
		{"an import fails", broken, WarmOn, "No module named 'no_such_module'"},
		{"no Python script", script, WarmOn, "no Python script"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newForkServerLab(t, t.TempDir(), c.program, func(o *Options) { o.Warm = c.mode })
			st := l.wake("a", nil)
			if st.Start != functions.StartPlain || !strings.Contains(st.StartNote, c.note) || (c.note == "") != (st.StartNote == "") {
				t.Errorf("%s: %q, want %q", st.Start, st.StartNote, c.note)
			}
		})
	}
}

// TestBytecodeIsMade: an environment without bytecode is compiled when it is first seen,
// with or without fork servers.
func TestBytecodeIsMade(t *testing.T) {
	t.Parallel()
	b, err := exec.Command("python3", "-c",
		"import sys; print(sys.executable, 'python%d.%d' % sys.version_info[:2], sys.implementation.cache_tag)").Output()
	if err != nil {
		testkit.Missing(t, "no python3")
	}
	f := strings.Fields(string(b))
	dir := t.TempDir()
	bin, site := filepath.Join(dir, "bin"), filepath.Join(dir, "lib", f[1], "site-packages")
	for _, d := range []string{bin, filepath.Join(site, "vllm")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(f[0], filepath.Join(bin, "python3")); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "serve-vllm")
	for path, text := range map[string]string{
		program:                             "#!" + filepath.Join(bin, "python3") + "\n" + pyEngine,
		filepath.Join(site, "vllm", "x.py"): "x = 1\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l := newForkServerLab(t, t.TempDir(), program, func(o *Options) { o.Warm = WarmOff })
	l.wake("a", nil)
	made := filepath.Join(site, "vllm", "__pycache__", "x."+f[2]+".pyc")
	l.until("bytecode is made", func() bool { _, err := os.Stat(made); return err == nil })
}
