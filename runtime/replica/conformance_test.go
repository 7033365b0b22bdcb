package replica

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
	"github.com/thaw-dev/thaw/testkit/gguf"
)

// replicaKind is an engine under the suite.
type replicaKind struct {
	name    string
	options func(t *testing.T, b *testSupervisor) Options // of a replica called "c"
	metrics bool                                          // it tells what it does
	keyed   bool                                          // it wants its key
	cancels bool                                          // metrics tell when a client's leaving has ended a generation
	start   time.Duration
}

// requireEnv is an environment variable of a component that CI may not have.
func requireEnv(t *testing.T, names ...string) []string {
	t.Helper()
	out := make([]string, len(names))
	for i, name := range names {
		if out[i] = os.Getenv(name); out[i] == "" {
			reason := strings.Join(names, " and ") + " are not set"
			if strings.Contains(names[i], "LLAMA") { // which CI does not have
				t.Skip(reason)
			}
			testkit.Missing(t, reason)
		}
	}
	return out
}

func emberCheckpoint(t *testing.T, b *testSupervisor) {
	t.Helper()
	if _, err := checkpoint.Folder(filepath.Join(b.dir, "tiny"), checkpoint.Tiny,
		strings.Repeat("the ice melts and the water runs over the stones ", 40), 1); err != nil {
		t.Fatal(err)
	}
}

func replicaKinds() []replicaKind {
	return []replicaKind{
		{name: "ember", metrics: true, keyed: true, cancels: true, start: testTimeout, options: func(t *testing.T, b *testSupervisor) Options {
			emberCheckpoint(t, b)
			return b.ember("c")
		}},
		// ember again, as a program of engine command: the row of command promises no
		// more than its argv.
		{name: "command", metrics: true, cancels: true, start: testTimeout, options: func(t *testing.T, b *testSupervisor) Options {
			emberCheckpoint(t, b)
			o := b.ember("c")
			exe, _ := os.Executable()
			o.Spec.Engine = functions.EngineCommand
			o.Spec.Args = []string{exe, "engine", "ember", "--model", "{model}", "--served-model-name", "{name}", "--host", "127.0.0.1", "--port", "{port}"}
			o.Spec.Health = "/health"
			return o
		}},
		{name: "vllm", metrics: true, keyed: true, cancels: true, start: 5 * time.Minute, options: func(t *testing.T, b *testSupervisor) Options {
			have := requireEnv(t, "THAW_ENGINE_VLLM", "THAW_VLLM_MODEL")
			o := b.options("c")
			o.Stager, o.Dir = inPlace{}, ""
			o.Spec.Engine, o.Spec.Source = functions.EngineVLLM, have[1]
			o.Spec.Args = []string{"--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "33554432"}
			o.Spec.Env = map[string]string{"TORCHDYNAMO_DISABLE": "1", "VLLM_TARGET_DEVICE": "cpu"}
			return o
		}},
		// A Python with llama-cpp-python's server, or a llama-server. Its compile
		// takes minutes, so CI has none: make test-llamacpp.
		{name: "llamacpp", keyed: true, start: 2 * time.Minute, options: func(t *testing.T, b *testSupervisor) Options {
			requireEnv(t, "THAW_ENGINE_LLAMACPP")
			emberCheckpoint(t, b)
			file := filepath.Join(b.dir, "gguf", "tiny.gguf")
			if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := gguf.Write(file, filepath.Join(b.dir, "tiny"), "gpt-2"); err != nil {
				t.Fatal(err)
			}
			o := b.options("c")
			o.Stager = anything{}
			o.Spec.Engine, o.Spec.Source, o.Spec.Args, o.Spec.Env = functions.EngineLlamaCpp, filepath.Dir(file), nil, nil
			return o
		}},
	}
}

// anything stages a folder by saying where it is.
type anything struct{}

func (anything) Stage(_ context.Context, req StageRequest, _ func(have, total functions.Bytes)) (Checkpoint, error) {
	_, err := os.Stat(req.Source)
	return Checkpoint{Path: req.Source, Bytes: 1}, err
}

// TestConformance is the contract of an engine, whichever it is: it starts, is
// READY when it has given a token, chats, streams, hears of a client that
// leaves, tells of its load where it can, wants its key, and ends with nothing
// left. A new row of the table gets a row here.
func TestConformance(t *testing.T) {
	for _, s := range replicaKinds() {
		t.Run(s.name, func(t *testing.T) { conform(t, s) })
	}
}

func conform(t *testing.T, s replicaKind) {
	b := newTestSupervisor(t)
	o := s.options(t, b)
	o.Spec.Deadlines.Start, o.Spec.Deadlines.FirstToken = functions.Duration(s.start), functions.Duration(time.Minute)
	o.Spec.Deadlines.Hang, o.Spec.Deadlines.Drain = functions.Duration(10*time.Second), functions.Duration(5*time.Second)
	began := time.Now()
	l := startReplica(t, o, New)
	st := l.wait(functions.Ready, s.start)
	t.Logf("READY after %v", time.Since(began).Round(time.Millisecond))
	pid := b.pid("c")
	testkit.Eventually(t, "READY is told as well", func() bool { return slices.Contains(l.states(), functions.Ready) })
	if got := fmt.Sprint(l.states()); got != "[DOWNLOADING LOADING_TO_GPU READY]" {
		t.Errorf("its states: %s", got)
	}
	phases := map[functions.Phase]bool{}
	for _, p := range st.Phases {
		phases[p.Phase] = true
	}
	for _, p := range []functions.Phase{functions.PhaseStage, functions.PhaseSpawn, functions.PhaseWarmup} {
		if !phases[p] {
			t.Errorf("no phase %s in %v", p, st.Phases)
		}
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	ask := func(ctx context.Context, key, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "POST", st.Endpoint+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		// As the activator's are: llama-cpp-python answers 400 where it is no UUID.
		req.Header.Set("X-Request-Id", "9352e96d832b4554a2e4c742eaeb5434")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	body := func(more string) string {
		return `{"model":"m","messages":[{"role":"user","content":"Hello"}],"temperature":0,` + more + `}`
	}

	t.Run("chat", func(t *testing.T) {
		res := ask(t.Context(), st.Key, body(`"max_tokens":4`))
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		var a struct {
			Model   string
			Choices []struct {
				Message struct{ Role, Content string }
				Finish  string `json:"finish_reason"`
			}
			Usage struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(b, &a); err != nil || res.StatusCode != 200 || len(a.Choices) != 1 || a.Choices[0].Finish == "" ||
			a.Usage.Prompt == 0 || a.Usage.Completion == 0 || a.Model != "m" {
			t.Errorf("%d %s %v", res.StatusCode, b, err)
		}
	})
	t.Run("stream", func(t *testing.T) {
		res := ask(t.Context(), st.Key, body(`"stream":true,"stream_options":{"include_usage":true},"max_tokens":4`))
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			t.Fatalf("%d %v %s", res.StatusCode, err, b)
		}
		data, finished := 0, false
		for line := range bytes.Lines(b) {
			if d, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				data++
				finished = finished || bytes.Contains(d, []byte(`"finish_reason":"`)) || bytes.Contains(d, []byte(`"finish_reason": "`))
			}
		}
		if data < 3 || !finished || !bytes.HasSuffix(bytes.TrimSpace(b), []byte("data: [DONE]")) {
			t.Errorf("%d events, finished %v: %s", data, finished, b)
		}
	})
	t.Run("unknown model", func(t *testing.T) {
		res := ask(t.Context(), st.Key, strings.Replace(body(`"max_tokens":1`), `"m"`, `"nobody"`, 1))
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		if s.name != "llamacpp" && res.StatusCode != 404 { // that one answers for whatever it has
			t.Errorf("%d %s", res.StatusCode, b)
		}
	})
	t.Run("key", func(t *testing.T) {
		if (st.Key != "") != s.keyed {
			t.Fatalf("key %q", st.Key)
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if s.keyed && bytes.Contains(line, []byte(st.Key)) {
			t.Error("its key stands on its command line")
		}
		for _, key := range []string{"", "sk-wrong"} {
			res := ask(t.Context(), key, body(`"max_tokens":1`))
			res.Body.Close()
			if s.keyed && res.StatusCode != 401 {
				t.Errorf("with key %q: %d", key, res.StatusCode)
			}
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		res := ask(ctx, st.Key, body(`"stream":true,"max_tokens":200,"ignore_eos":true`))
		r := bufio.NewReader(res.Body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Error(err)
		}
		cancel()
		res.Body.Close()
		if s.cancels {
			testkit.Eventually(t, "nothing runs for a client that left", func() bool {
				m := readMetrics(t.Context(), l.eng, time.Second)
				return m.err == nil && m.Running+m.Waiting == 0
			})
		}
		// Whatever it does with the rest, it answers the next one.
		res = ask(t.Context(), st.Key, body(`"max_tokens":1`))
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Error(res.StatusCode)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		m := readMetrics(t.Context(), l.eng, 5*time.Second)
		switch {
		case s.metrics && (m.err != nil || !m.Load || !m.Flow || m.Tokens == 0):
			t.Errorf("%+v", m)
		case !s.metrics && m.err != nil && m.err != engine.ErrNoMetrics:
			t.Error(m.err)
		}
	})
	t.Run("end", func(t *testing.T) {
		l.Unload(5*time.Second, "over")
		if done := l.waitEnd(testTimeout); done.State != functions.Unloaded || done.Key != "" && done.Endpoint != "" {
			t.Errorf("%+v", done)
		}
		testkit.Eventually(t, "its process is gone", func() bool { return processGone(pid) })
	})
	c.CloseIdleConnections()
}
