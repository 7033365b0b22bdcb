package replica

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// A real vLLM, where one is installed: THAW_ENGINE_VLLM is its program,
// THAW_VLLM_MODEL a checkpoint that it can serve without a GPU.
func TestVLLM(t *testing.T) {
	model := os.Getenv("THAW_VLLM_MODEL")
	if os.Getenv("THAW_ENGINE_VLLM") == "" || model == "" {
		const why = "no vLLM: THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set"
		if os.Getenv("THAW_REQUIRE") == "all" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	b := newBench(t)
	options := func(id string) Options {
		o := b.options(id)
		o.Stager = inPlace{}
		o.Dir = ""
		o.Spec = functions.ModelSpec{
			Source: model, Engine: functions.EngineVLLM,
			Args: []string{"--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "33554432"},
			Env:  map[string]string{"TORCHDYNAMO_DISABLE": "1", "VLLM_TARGET_DEVICE": "cpu"},
			Deadlines: functions.Deadlines{Stage: functions.Duration(time.Minute), Start: functions.Duration(5 * time.Minute),
				FirstToken: functions.Duration(time.Minute), Hang: functions.Duration(3 * time.Second), Drain: functions.Duration(30 * time.Second)},
		}
		return o
	}
	start := func(t *testing.T, id string) *life {
		l := live(t, options(id), New)
		st := l.wait(functions.Ready, 5*time.Minute)
		t.Logf("READY: %v", st.Phases)
		return l
	}
	// core is the process of the group that is not its leader.
	core := func(t *testing.T, pid int) int {
		out, err := exec.Command("ps", "-eo", "pid=,pgid=,args=").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			if len(f) > 2 && f[1] == strconv.Itoa(pid) && strings.Contains(line, "EngineCore") {
				n, _ := strconv.Atoi(f[0])
				return n
			}
		}
		t.Fatal("no EngineCore")
		return 0
	}
	gonePIDs := func(t *testing.T, pids ...int) {
		for _, p := range pids {
			eventually(t, "no process of it is left", func() bool { return gone(p) })
		}
	}
	// stream holds a request open and returns once the first token came.
	stream := func(t *testing.T, l *life) {
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, "POST", l.Status().Endpoint+"/v1/completions",
			strings.NewReader(`{"model":"m","prompt":"Hello","stream":true,"max_tokens":500,"ignore_eos":true}`))
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); res.Body.Close(); http.DefaultClient.CloseIdleConnections() })
		if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("unloaded, and metrics", func(t *testing.T) {
		l := start(t, "v1")
		pid := b.pid("v1")
		c := core(t, pid)
		m := l.read(t.Context(), 5*time.Second)
		if m.err != nil || !m.Load || !m.Flow || !m.Counted || m.Tokens == 0 {
			t.Errorf("%+v", m)
		}
		began := time.Now()
		l.Unload(time.Second, "idle")
		if st := l.over(5 * time.Second); st.State != functions.Unloaded {
			t.Error(st.State, st.Error)
		}
		t.Logf("unloaded after %v", time.Since(began))
		gonePIDs(t, pid, c)
	})
	t.Run("EngineCore killed, then API server killed", func(t *testing.T) {
		l := start(t, "v2")
		pid := b.pid("v2")
		c := core(t, pid)
		stream(t, l)
		began := time.Now()
		syscall.Kill(c, syscall.SIGKILL)
		st := l.over(10 * time.Second)
		t.Logf("FAILED after %v: %s", time.Since(began), st.Error)
		if st.State != functions.Failed {
			t.Error(st.State)
		}
		gonePIDs(t, pid, c)

		l = start(t, "v3")
		pid = b.pid("v3")
		c = core(t, pid)
		began = time.Now()
		syscall.Kill(pid, syscall.SIGKILL)
		st = l.over(2 * time.Second)
		t.Logf("FAILED after %v: %s", time.Since(began), st.Error)
		gonePIDs(t, pid, c)
	})
	t.Run("EngineCore stopped while it streams", func(t *testing.T) {
		l := start(t, "v4")
		pid := b.pid("v4")
		c := core(t, pid)
		stream(t, l)
		syscall.Kill(c, syscall.SIGSTOP)
		began := time.Now()
		st := l.over(20 * time.Second)
		t.Logf("FAILED after %v: %s", time.Since(began), st.Error)
		if st.State != functions.Failed || !strings.Contains(st.Error, "hung") {
			t.Error(st.State)
		}
		gonePIDs(t, pid, c)
	})
	t.Run("ended while loading", func(t *testing.T) {
		l := live(t, options("v5"), New)
		eventually(t, "it is spawned", func() bool { return l.LogPath() != "" })
		pid := b.pid("v5")
		began := time.Now()
		l.Unload(0, "stopped")
		if st := l.over(4 * time.Second); st.State != functions.Unloaded {
			t.Error(st.State)
		}
		t.Logf("after %v", time.Since(began))
		gonePIDs(t, pid)
	})
	t.Run("bad flag", func(t *testing.T) {
		o := options("v6")
		o.Spec.Args = append(o.Spec.Args, "--no-such-flag")
		st := live(t, o, New).over(2 * time.Minute)
		t.Log(st.Error)
		if !strings.Contains(st.Error, "unrecognized arguments: --no-such-flag") {
			t.Error(st.Error)
		}
	})
}
