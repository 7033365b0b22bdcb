package replica

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/tensors"
)

// vllmEnv is a real vLLM, where one is installed: THAW_ENGINE_VLLM is its
// program, THAW_VLLM_MODEL a checkpoint that it can serve without a GPU. One
// plain server is shared by what does it no harm; faults have servers of their
// own, forked from a warm interpreter.
type vllmEnv struct {
	*testSupervisor
	model   string
	shared  map[string]bool // names in shared memory when it began
	scratch string
	warm    func(cmd engine.Command) (string, string)
}

func newVLLMEnv(t *testing.T) *vllmEnv {
	t.Helper()
	g := &vllmEnv{model: os.Getenv("THAW_VLLM_MODEL"), shared: map[string]bool{}}
	if os.Getenv("THAW_ENGINE_VLLM") == "" || g.model == "" {
		testkit.Missing(t, "no vLLM: THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set")
	}
	for _, n := range sharedMemory() {
		g.shared[n] = true
	}
	g.testSupervisor = newTestSupervisor(t)
	g.scratch = supervisor.ScratchRoot(g.dir)
	return g
}

// options of a replica of the model; deadlines are the defaults but for start.
func (v *vllmEnv) options(id string, change ...func(*Options)) Options {
	o := v.testSupervisor.options(id)
	o.Stager, o.Dir, o.Scratch, o.ForkParent = inPlaceStager{v.dir}, v.dir, v.scratch, v.warm
	o.Spec = functions.ModelSpec{
		Source: v.model, Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "256", "--max-num-seqs", "8"},
		Env:       map[string]string{"VLLM_SERVER_DEV_MODE": "1"},
		Resources: functions.Resources{Memory: 1 << 30}, Deadlines: functions.Defaults().Deadlines,
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

// ready starts a replica and waits for it.
func (v *vllmEnv) ready(t *testing.T, id string, change ...func(*Options)) *replicaRun {
	t.Helper()
	began := time.Now()
	l := startReplica(t, v.options(id, change...), New)
	st := l.wait(functions.Ready, 5*time.Minute)
	t.Logf("%s READY after %v, %s %s", id, time.Since(began).Round(10*time.Millisecond), st.Start, st.StartNote)
	return l
}

// startForkServer starts a warm interpreter for engines like this one. It is ready some
// seconds later.
func (v *vllmEnv) startForkServer(t *testing.T) (ready func()) {
	t.Helper()
	cmd, err := engine.Programs{}.Prepare(engine.Request{Spec: v.options("x").Spec, Name: "m", Path: v.model, Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	env, err := forkserver.FindEnvironment(cmd.Argv[0])
	if err != nil {
		t.Fatal(err)
	}
	script, err := forkserver.InstallScript(v.dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(v.dir, "warm.sock")
	_, err = v.client.Spawn(t.Context(),
		supervisor.Process{ID: "warm-1", Argv: env.ParentArgv(script, socket, forkserver.ImportList("vllm")),
			Env: forkserver.ParentEnviron(cmd.Env)})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		began := time.Now()
		var facts forkserver.Facts
		testkit.EventuallyWithin(t, 3*time.Minute, "a warm interpreter", func() (bool, string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			facts, err = forkserver.AskFacts(ctx, socket)
			return err == nil, fmt.Sprint(err)
		})
		t.Logf("warm interpreter: waited %v, %.1f s of imports, %d MiB", time.Since(began).Round(time.Millisecond), facts.Imports,
			facts.Bytes>>20)
		if reason := facts.Unusable(); reason != "" {
			t.Fatal(reason)
		}
		v.warm = func(cmd engine.Command) (string, string) {
			if description := facts.DifferingVariable(cmd.Env); description != "" {
				return "", description + " differs"
			}
			return socket, ""
		}
	}
}

// core is the process of a replica's group that computes.
func (v *vllmEnv) core(t *testing.T, id string) int {
	t.Helper()
	pid := engineCore(v.pid(id))
	if pid == 0 {
		t.Fatal("no EngineCore")
	}
	return pid
}

// engineCore is the process of a vLLM server's group that computes, 0 if it does not run yet.
func engineCore(leader int) int {
	for _, p := range group(leader) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if p != leader && bytes.Contains(name, []byte("EngineCore")) {
			return p
		}
	}
	return 0
}

// group lists the processes of a group that are alive.
func group(pgid int) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 3 && f[0] != "Z" && (f[2] == strconv.Itoa(pgid) || f[3] == strconv.Itoa(pgid)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// sharedMemory lists what Python makes there.
func sharedMemory() (names []string) {
	entries, _ := os.ReadDir("/dev/shm")
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, "psm_") || strings.HasPrefix(n, "sem.") {
			names = append(names, n)
		}
	}
	return names
}

// leftovers is what replicas have left: processes of a group, files of a scratch
// folder, and names in shared memory that no process uses.
func (v *vllmEnv) leftovers(leaders ...int) (found []string) {
	for _, p := range leaders {
		for _, pid := range group(p) {
			found = append(found, fmt.Sprintf("process %d of group %d", pid, p))
		}
	}
	entries, _ := os.ReadDir(v.scratch)
	for _, e := range entries {
		found = append(found, "scratch folder "+e.Name())
	}
	var fresh []string
	for _, n := range sharedMemory() {
		if !v.shared[n] {
			fresh = append(fresh, n)
		}
	}
	if len(fresh) == 0 {
		return found
	}
	// By inode: a semaphore is mapped under the name it had before.
	used := map[string]bool{}
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, m := range maps {
		b, _ := os.ReadFile(m)
		for line := range bytes.Lines(b) {
			if f := bytes.Fields(line); len(f) > 5 && bytes.HasPrefix(f[5], []byte("/dev/shm/")) {
				used[string(f[4])] = true
			}
		}
	}
	for _, n := range fresh {
		if st, err := os.Stat("/dev/shm/" + n); err == nil && !used[fmt.Sprint(st.Sys().(*syscall.Stat_t).Ino)] {
			found = append(found, "shared memory "+n)
		}
	}
	return found
}

// clean waits until nothing of the groups is left.
func (v *vllmEnv) clean(t *testing.T, leaders ...int) {
	t.Helper()
	defer func() {
		for _, n := range sharedMemory() {
			v.shared[n] = true // said once
		}
	}()
	testkit.Eventually(t, "nothing is left", func() (bool, string) {
		found := v.leftovers(leaders...)
		return len(found) == 0, strings.Join(found, ", ")
	})
}

// postJSON asks the engine as its agent would.
func postJSON(ctx context.Context, l *replicaRun, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	st := l.Status()
	req, err := http.NewRequestWithContext(ctx, "POST", st.Endpoint+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+st.Key)
	return fresh.Do(req)
}

// fresh keeps no connection: nothing of one test is left to another.
var fresh = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// answer is the status and body of one request.
func answer(t *testing.T, l *replicaRun, path string, body any) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := postJSON(ctx, l, path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// stream holds a request open. It returns once the first token came; end gives what came
// until the end of the connection.
func stream(t *testing.T, l *replicaRun, tokens int) (end func() (text string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	res, err := postJSON(ctx, l, "/v1/completions", map[string]any{"model": "m", "prompt": "Hello", "stream": true, "max_tokens": tokens, "ignore_eos": true})
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	in := bufio.NewReader(res.Body)
	first, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(in)
		done <- first + string(b) + fmt.Sprint(" ", err)
	}()
	t.Cleanup(func() { cancel(); res.Body.Close() })
	return func() string {
		t.Helper()
		select {
		case text := <-done:
			return text
		case <-time.After(testTimeout):
			t.Fatal("the stream does not end")
			return ""
		}
	}
}

// slowTimeouts makes the model's tokens come slowly enough that one can act between them.
func slowTimeouts(o *Options) {
	o.Spec.Args = append(slices.Clone(o.Spec.Args), "--stream-interval", "1")
}

func TestVLLM(t *testing.T) {
	g := newVLLMEnv(t)
	ready := g.startForkServer(t)
	t.Run("plain", g.plain)
	ready()
	t.Run("EngineCore killed while it streams", g.coreKilled)
	t.Run("ends", g.ends)
	t.Run("bad input", g.badInput)
	t.Run("starts and ends", g.startsAndEnds)
	g.clean(t)
}

// plain is a server started plainly, with adapters, that sleeps and wakes, and
// hangs at last. The warm interpreter is imported beside its start.
func (v *vllmEnv) plain(t *testing.T) {
	dims := shape(t, v.model)
	for name, rank := range map[string]int{"a": 8, "b": 8, "c": 8, "large": 32} {
		fullLora(t, filepath.Join(v.dir, name), dims, rank)
	}
	l := v.ready(t, "plain", func(o *Options) {
		o.Spec.Args = append(o.Spec.Args, "--max-loras", "2")
		for _, n := range []string{"a", "b", "c", "large"} {
			o.Spec.Adapters = append(o.Spec.Adapters, functions.Adapter{Name: n, Source: "./" + n})
		}
	})
	pid, c := v.pid("plain"), v.core(t, "plain")
	t.Run("phases", func(t *testing.T) {
		st := l.Status()
		var names []string
		var sum float64
		for _, p := range st.Phases {
			sum += p.Duration
			for _, q := range p.Parts {
				names = append(names, string(p.Phase)+"/"+q.Name)
				t.Logf("%-8s %-8s %6.2f s, %2.0f %%", p.Phase, q.Name, q.Duration, 100*q.Duration/st.Phases[len(st.Phases)-1].Start)
			}
		}
		want := []string{"spawn/imports", "spawn/engine", "load/weights", "warmup/warm-up", "warmup/app", "warmup/token"}
		if !slices.Equal(names, want) {
			t.Errorf("%v", names)
		}
		if st.Start != functions.StartPlain {
			t.Error(st.Start)
		}
		last := st.Phases[len(st.Phases)-1]
		if total := last.Start + last.Duration; sum < total*0.99 {
			t.Errorf("phases are %.2f s of %.2f", sum, total)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		if m := readMetrics(t.Context(), l.eng, 5*time.Second); m.err != nil || !m.Load || !m.Flow || !m.Counted || m.Tokens == 0 {
			t.Errorf("%+v", m)
		}
	})
	t.Run("adapters", func(t *testing.T) {
		for _, n := range []string{"a", "b", "a", "c"} {
			if err := l.LoadAdapter(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			if code, body := answer(t, l, "/v1/completions", map[string]any{"model": n, "prompt": "Hello", "max_tokens": 1}); code != 200 {
				t.Errorf("%s: %d %s", n, code, body)
			}
		}
		testkit.Eventually(t, "its status tells of a and c", func() bool {
			st := l.Status()
			return slices.Equal(st.Adapters, []string{"a", "c"}) && st.AdapterNotes["a"] != ""
		})
		if code, _ := answer(t, l, "/v1/completions", map[string]any{"model": "b", "prompt": "Hello", "max_tokens": 1}); code != 404 {
			t.Errorf("one that gave up its slot answers %d", code)
		}
		var ae *functions.AdapterError
		if err := l.LoadAdapter(t.Context(), "large"); !errors.As(err, &ae) || ae.Code != AdapterInvalid {
			t.Error(err)
		}
		// What the engine itself says, if we had not looked.
		e := l.eng.(adapterEngine)
		for _, c := range []struct {
			name, path, code string
			status           int
		}{
			{"large", filepath.Join(v.dir, "large"), AdapterInvalid, 500},
			{"nowhere", filepath.Join(v.dir, "nowhere"), AdapterNotFound, 404},
			{"m", filepath.Join(v.dir, "a"), AdapterInvalid, 400},
			{"a", filepath.Join(v.dir, "a"), AdapterInvalid, 400},
		} {
			var se *engine.StatusError
			err := e.LoadAdapter(t.Context(), c.name, c.path)
			if !errors.As(err, &se) || se.Status != c.status || adapterErrorCode(err) != c.code || engine.AdapterLoaded(se) != (c.name == "a") {
				t.Errorf("%s: %v is %s", c.name, err, adapterErrorCode(err))
			}
		}
	})
	t.Run("sleep", func(t *testing.T) {
		for level := 1; level <= 2; level++ {
			end := stream(t, l, 40)
			l.Sleep(level, "test")
			if text := end(); !strings.Contains(text, "[DONE]") || strings.Contains(text, `"abort"`) {
				t.Errorf("in flight, it ended with %q", text[max(0, len(text)-300):])
			}
			testkit.Eventually(t, "it sleeps", func() bool { return l.Status().SleepLevel == level })
			if asleep, err := l.eng.(*engine.Client).Sleeping(t.Context()); err != nil || !asleep {
				t.Error(asleep, err)
			}
			began := time.Now()
			l.WakeUp("test")
			testkit.Eventually(t, "it is awake", func() bool { return l.Status().State == functions.Ready })
			t.Logf("awake from level %d after %v", level, time.Since(began))
		}
		if n := l.Status().Adapters; len(n) != 0 {
			t.Errorf("after a deep sleep: %v", n)
		}
		if err := l.LoadAdapter(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
	t.Run("EngineCore stopped while it streams", func(t *testing.T) {
		end := stream(t, l, 250)
		syscall.Kill(c, syscall.SIGSTOP)
		st := l.waitEnd(3 * time.Minute)
		end()
		if st.State != functions.Failed || !strings.Contains(st.Error, "hung") {
			t.Error(st.State, st.Error)
		}
		v.clean(t, pid)
	})
}

// coreKilled: the process that computes dies under a stream; its front then
// ends with code 0, which is a crash all the same.
func (v *vllmEnv) coreKilled(t *testing.T) {
	l := v.ready(t, "killed", slowTimeouts)
	if st := l.Status(); st.Start != functions.StartWarm {
		t.Errorf("%s: %s", st.Start, st.StartNote)
	}
	pid, c := v.pid("killed"), v.core(t, "killed")
	end := stream(t, l, 250)
	syscall.Kill(c, syscall.SIGKILL)
	text := end()
	st := l.waitEnd(testTimeout)
	if st.State != functions.Failed || !strings.Contains(st.Error, "EngineCore died unexpectedly") {
		t.Error(st.State, st.Error)
	}
	// The stream breaks with its front's end, which vLLM's own watch of its core begins.
	if !strings.Contains(text, `"error"`) {
		t.Errorf("%q", text[max(0, len(text)-300):])
	}
	v.clean(t, pid)
}

// ends are the ways in which a vLLM does not want to end.
func (v *vllmEnv) ends(t *testing.T) {
	ends := func(t *testing.T, l *replicaRun, want functions.State) functions.ReplicaStatus {
		t.Helper()
		st := l.waitEnd(testTimeout)
		if st.State != want {
			t.Errorf("%s %s, want %s", st.State, st.Error, want)
		}
		return st
	}
	t.Run("idle", func(t *testing.T) {
		l := v.ready(t, "e1")
		pid := v.pid("e1")
		l.Unload(30*time.Second, "idle")
		ends(t, l, functions.Unloaded)
		v.clean(t, pid)
	})
	t.Run("a stream that outlasts the drain", func(t *testing.T) {
		l := v.ready(t, "e2", slowTimeouts)
		pid, c := v.pid("e2"), v.core(t, "e2")
		end := stream(t, l, 250)
		syscall.Kill(c, syscall.SIGSTOP) // or it would be over too soon
		l.Unload(time.Second, "stopped")
		ends(t, l, functions.Unloaded)
		end()
		v.clean(t, pid)
	})
	t.Run("a stream that does not", func(t *testing.T) {
		l := v.ready(t, "e3", slowTimeouts)
		pid := v.pid("e3")
		end := stream(t, l, 40)
		l.Unload(30*time.Second, "stopped")
		if text := end(); !strings.Contains(text, "[DONE]") || strings.Contains(text, "abort") {
			t.Errorf("%q", text[max(0, len(text)-300):])
		}
		ends(t, l, functions.Unloaded)
		v.clean(t, pid)
	})
	t.Run("API server hangs", func(t *testing.T) {
		l := v.ready(t, "e4")
		pid := v.pid("e4")
		syscall.Kill(pid, syscall.SIGSTOP)
		l.Unload(time.Second, "stopped")
		ends(t, l, functions.Unloaded)
		v.clean(t, pid)
	})
	t.Run("API server killed, EngineCore orphaned", func(t *testing.T) {
		l := v.ready(t, "e5")
		pid := v.pid("e5")
		syscall.Kill(pid, syscall.SIGKILL)
		st := ends(t, l, functions.Failed)
		if !strings.Contains(st.Error, "ended by signal 9") {
			t.Error(st.Error)
		}
		v.clean(t, pid)
	})
	t.Run("SIGTERM swallowed during the start", func(t *testing.T) {
		l := startReplica(t, v.options("e6"), New)
		testkit.Eventually(t, "it waits for its EngineCore", func() bool {
			b, _ := os.ReadFile(l.LogPath())
			return bytes.Contains(b, []byte("non-default args"))
		})
		pid := v.pid("e6")
		l.Unload(30*time.Second, "stopped")
		ends(t, l, functions.Unloaded)
		v.clean(t, pid)
	})
}

// badInput is told with the engine's own first cause.
func (v *vllmEnv) badInput(t *testing.T) {
	// variant is the model with other files.
	variant := func(t *testing.T, name string, change func(dir string)) func(*Options) {
		dir := filepath.Join(v.dir, name)
		if err := os.CopyFS(dir, os.DirFS(v.model)); err != nil {
			t.Fatal(err)
		}
		change(dir)
		return func(o *Options) { o.Spec.Source = dir }
	}
	edit := func(t *testing.T, path, old, new string) {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(old)) {
			t.Fatal(path, err)
		}
		if err := os.WriteFile(path, bytes.ReplaceAll(b, []byte(old), []byte(new)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, id string
		change   func(t *testing.T) func(*Options)
		why      string
	}{
		{"a wrong flag", "b1", func(*testing.T) func(*Options) {
			return func(o *Options) { o.Spec.Args = append(o.Spec.Args, "--no-such-flag") }
		}, "vllm ended while loading: bad args in the model file: unrecognized arguments: --no-such-flag"},
		{"a model it does not know", "b2", func(t *testing.T) func(*Options) {
			return variant(t, "unknown", func(dir string) {
				edit(t, filepath.Join(dir, "config.json"), `"llama"`, `"nosuch"`)
			})
		}, "vllm ended while loading: The checkpoint you are trying to load has model type `nosuch`"},
		{"a shard is missing", "b3", func(t *testing.T) func(*Options) {
			return variant(t, "shards", func(dir string) { truncateHalf(t, dir) })
		}, "vllm ended while loading: FileNotFoundError: Weight files referenced in index but missing"},
		{"memory does not suffice", "b4", func(*testing.T) func(*Options) {
			return func(o *Options) { o.Spec.Args = append(o.Spec.Args, "--kv-cache-memory-bytes", "9000000000000") }
		}, "vllm ended while loading: out of memory: Available memory on node 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := startReplica(t, v.options(c.id, c.change(t)), New).waitEnd(2 * time.Minute)
			if st.State != functions.Failed || !strings.HasPrefix(st.Error, c.why) {
				t.Errorf("%s %s", st.State, st.Error)
			}
			v.clean(t)
		})
	}
	t.Run("a chat template that fails", func(t *testing.T) {
		l := v.ready(t, "b5", variant(t, "template", func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{ raise_exception('no such role here') }}"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}))
		// The engine serves completions; chat is answered with its own cause.
		code, body := answer(t, l, "/v1/chat/completions", map[string]any{"model": "m", "max_tokens": 1, "messages": []any{map[string]string{"role": "user", "content": "Hi"}}})
		t.Log(code, body)
		if code != 400 || !strings.Contains(body, "no such role here") {
			t.Error(code, body)
		}
		l.Unload(0, "done")
		l.waitEnd(testTimeout)
	})
}

// startsAndEnds: many starts, half of them killed at a random point, leave
// nothing. THAW_VLLM_STARTS is how many.
func (v *vllmEnv) startsAndEnds(t *testing.T) {
	n := 6
	if count, err := strconv.Atoi(os.Getenv("THAW_VLLM_STARTS")); err == nil {
		n = count
	}
	took := 3 * time.Second
	var killed, before int
	for i := range n {
		id := fmt.Sprintf("s%d", i)
		began := time.Now()
		l := startReplica(t, v.options(id), New)
		if i%2 == 0 {
			l.wait(functions.Ready, 5*time.Minute)
			took = (took + time.Since(began)) / 2
			pid := v.pid(id)
			l.Unload(30*time.Second, "done")
			if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
				t.Errorf("%s: %s %s", id, st.State, st.Error)
			}
			v.clean(t, pid)
			continue
		}
		// Who is killed changes too: the front, the one that computes, all.
		<-time.After(rand.N(took))
		testkit.Eventually(t, "it is spawned", func() bool { return l.LogPath() != "" })
		pid := v.pid(id)
		switch i / 2 % 3 {
		case 0:
			syscall.Kill(pid, syscall.SIGKILL)
		case 1:
			// Not the group's newest process: an import starts short ones that the server can lose.
			syscall.Kill(cmp.Or(engineCore(pid), pid), syscall.SIGKILL)
		case 2:
			syscall.Kill(-pid, syscall.SIGKILL)
		}
		killed++
		if l.Status().State != functions.Ready {
			before++
		}
		if st := l.waitEnd(3 * time.Minute); st.State != functions.Failed {
			t.Errorf("%s: %s", id, st.State)
		}
		v.clean(t, pid)
	}
	t.Logf("%d starts, %d killed, %d of them before they were ready; one takes %v", n, killed, before, took.Round(10*time.Millisecond))
}

// inPlaceStager stages models in place, and what is relative from a folder.
type inPlaceStager struct{ dir string }

func (s inPlaceStager) Stage(_ context.Context, req StageRequest, _ func(have, total functions.Bytes)) (Checkpoint, error) {
	if filepath.IsAbs(req.Source) {
		return Checkpoint{Path: req.Source}, nil
	}
	return Checkpoint{Path: filepath.Join(s.dir, req.Source)}, nil
}

// dims of the attention of a Llama.
type dims struct {
	Layers int `json:"num_hidden_layers"`
	Hidden int `json:"hidden_size"`
	Heads  int `json:"num_attention_heads"`
	KV     int `json:"num_key_value_heads"`
	Dim    int `json:"head_dim"`
}

func shape(t *testing.T, model string) (d dims) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(model, "config.json"))
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	if d.Dim == 0 {
		d.Dim = d.Hidden / d.Heads
	}
	return d
}

// fullLora writes an adapter that fits the model: queries and values, small weights.
func fullLora(t *testing.T, dir string, d dims, rank int) {
	t.Helper()
	fill := func(n int) []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = float32(i%7) * 0.01
		}
		return w
	}
	var ts []tensors.Source
	for i := range d.Layers {
		for name, out := range map[string]int{"q_proj": d.Heads * d.Dim, "v_proj": d.KV * d.Dim} {
			p := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.%s.", i, name)
			ts = append(ts, tensors.Source{Name: p + "lora_A.weight", Shape: []int{rank, d.Hidden}, Data: fill(rank * d.Hidden)},
				tensors.Source{Name: p + "lora_B.weight", Shape: []int{out, rank}, Data: fill(out * rank)})
		}
	}
	write(t, filepath.Join(dir, "adapter_model.safetensors"), func(w io.Writer) error { return tensors.Write(w, "F32", ts) })
	config := fmt.Sprintf(`{"peft_type":"LORA","task_type":"CAUSAL_LM","r":%d,"lora_alpha":16,"target_modules":["q_proj","v_proj"],"lora_dropout":0,"bias":"none","fan_in_fan_out":false,"inference_mode":true,"modules_to_save":null}`, rank)
	write(t, filepath.Join(dir, "adapter_config.json"), func(w io.Writer) error { _, err := io.WriteString(w, config); return err })
}

// truncateHalf makes two shards of a checkpoint by its index, and one of them missing.
func truncateHalf(t *testing.T, dir string) {
	t.Helper()
	ts, err := readHeader(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	index := struct {
		Map map[string]string `json:"weight_map"`
	}{map[string]string{}}
	for i, x := range ts {
		index.Map[x.Name] = "model-00001-of-00002.safetensors"
		if i >= len(ts)/2 {
			index.Map[x.Name] = "model-00002-of-00002.safetensors"
		}
	}
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model-00001-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "model.safetensors.index.json"), func(w io.Writer) error { return json.NewEncoder(w).Encode(index) })
}
