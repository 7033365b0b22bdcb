package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeVLLM implements the parts of vLLM's protocol that ember lacks: sleep, wake and
// adapters, behind a key. It is started as vLLM is, by a program of its own name (asVLLM).
// While the file that FAKE_WAKE names exists, every wake fails.
func fakeVLLM(args []string) int {
	if len(args) < 2 || args[0] != "serve" {
		return 2
	}
	flag := func(name string) string {
		if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	name, key := flag("--served-model-name"), os.Getenv("VLLM_API_KEY")
	var mu sync.Mutex
	asleep := make(chan struct{}) // closed while awake
	close(asleep)
	sleeping, adapters := false, map[string]string{}
	var running, tokens atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total %d\n", running.Load(),
			tokens.Load())
	})
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, `{"is_sleeping":%v}`, sleeping)
	})
	mux.HandleFunc("POST /sleep", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !sleeping {
			sleeping, asleep = true, make(chan struct{})
		}
	})
	mux.HandleFunc("POST /wake_up", func(w http.ResponseWriter, _ *http.Request) {
		if f := os.Getenv("FAKE_WAKE"); f != "" {
			if _, err := os.Stat(f); err == nil {
				http.Error(w, `{"error":{"message":"CUDA error: out of memory"}}`, 500)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if sleeping {
			sleeping = false
			close(asleep)
		}
	})
	guarded := func(f http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if key == "" || r.Header.Get("Authorization") != "Bearer "+key {
				http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
				return
			}
			f(w, r)
		}
	}
	mux.HandleFunc("POST /v1/load_lora_adapter", guarded(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Name string `json:"lora_name"`
			Path string `json:"lora_path"`
		}
		json.NewDecoder(r.Body).Decode(&q)
		if b, _ := os.ReadFile(filepath.Join(q.Path, "adapter_config.json")); strings.Contains(string(b), `"broken"`) {
			http.Error(w, `{"error":{"message":"LoRA rank 64 is greater than max_lora_rank 16.","code":500}}`, 500)
			return
		}
		mu.Lock()
		adapters[q.Name] = q.Path
		mu.Unlock()
	}))
	mux.HandleFunc("POST /v1/unload_lora_adapter", guarded(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Name string `json:"lora_name"`
		}
		json.NewDecoder(r.Body).Decode(&q)
		mu.Lock()
		delete(adapters, q.Name)
		mu.Unlock()
	}))
	answer := guarded(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		body, _ := io.ReadAll(r.Body)
		var q struct{ Model string }
		json.Unmarshal(body, &q)
		mu.Lock()
		wait, known := asleep, q.Model == name || adapters[q.Model] != ""
		mu.Unlock()
		select {
		case <-wait:
		case <-r.Context().Done():
			return
		}
		if !known {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(404)
			fmt.Fprintf(w, `{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}`)
			return
		}
		tokens.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","choices":[{"index":0,"text":"hi","message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`,
			q.Model+" of "+strconv.Itoa(os.Getpid()))
	})
	mux.HandleFunc("POST /v1/completions", answer)
	mux.HandleFunc("POST /v1/chat/completions", answer)
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+flag("--port"), mux))
	return 1
}

// asVLLM returns the shell command after which this binary is the machine's vLLM.
func asVLLM(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vllm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "vllm")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec "+os.Args[0]+" fake-vllm \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return "export THAW_ENGINE_VLLM=" + program
}

func (p *platform) awaitState(function, want string) {
	p.t.Helper()
	p.eventually(function+" is "+want, func() bool { return p.state(function) == want })
}

// coldStart returns a cold start by its id.
func (p *platform) coldStart(id string) map[string]any {
	p.t.Helper()
	r := p.do("GET", "/api/v1/coldstarts/"+id, "")
	var m map[string]any
	if err := json.Unmarshal([]byte(r.body), &m); err != nil || r.status != 200 {
		p.t.Fatalf("%d %s", r.status, r.body)
	}
	return m
}

// TestSleepLevels: two models share one GPU. Requested in turn, one sleeps while the
// other serves, and neither is loaded twice. A failed wake becomes a cold start, and a
// model that sleeps for too long is unloaded.
func TestSleepLevels(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "no-wake")
	sleepy := func(name, idle string) string {
		return modelFile(name, "  source: "+tinyDir(t)+"\n  engine: vllm\n  args: [--enable-sleep-mode]\n  env: {FAKE_WAKE: "+broken+
			"}\n  resources: {gpus: 1, gpuMemory: 1Gi, memory: 64Mi}\n  scale: {idle: "+idle+"}\n")
	}
	p := spawnAfter(t, asVLLM(t), map[string]string{"a.yaml": sleepy("a", "5m"), "b.yaml": sleepy("b", "5m")}, "--gpus", "1", "--gpu-memory", "1Gi", "--memory", "1Gi", "--warm", "off")
	ask := func(name string) (text, cold string) {
		t.Helper()
		r := p.chat(name, "")
		if r.status != 200 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		return r.text(), r.header.Get("thaw-cold-start")
	}
	first, cold := ask("a")
	if p.coldStart(cold)["tier"] == "SLEEPING" {
		t.Error("a first start is no wake-up")
	}
	ask("b")
	p.awaitState("default/a", "SLEEPING")
	if r := p.do("GET", "/v1/models/a", ""); !strings.Contains(r.body, `"state":"sleeping"`) {
		t.Errorf("%s", r.body)
	}
	if r := p.do("GET", "/metrics", ""); !strings.Contains(r.body, `thaw_model_state{model="a",state="sleeping",team="default"} 1`) ||
		!strings.Contains(r.body, `thaw_sleeps_total{reason="evicted"} 1`) {
		t.Errorf("metrics do not tell of the sleep")
	}
	again, cold := ask("a")
	if again != first {
		t.Errorf("first %q, then %q: it was started anew", first, again)
	}
	if tl := p.coldStart(cold); tl["tier"] != "SLEEPING" || tl["state"] != "READY" {
		t.Errorf("%v", tl)
	}
	p.awaitState("default/b", "SLEEPING")

	idle := func(n float64) {
		t.Helper()
		p.eventually("slept for want of requests", func() bool { return p.metric(`thaw_sleeps_total{reason="idle"}`) == n })
	}
	p.file("a.yaml", sleepy("a", "500ms")) // one that was woken lately makes way after ten seconds only
	idle(1)

	// b cannot wake: it is started again, and its client sees no failure.
	if err := os.WriteFile(broken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ask("b")
	if r := p.do("GET", "/metrics", ""); !strings.Contains(r.body, `thaw_sleep_wakeups_total{result="failed"} 1`) {
		t.Errorf("metrics do not tell of the wake that failed")
	}

	// After one idle time it sleeps, after two it is unloaded.
	p.file("b.yaml", sleepy("b", "500ms"))
	idle(2)
	p.eventually("all unloaded", func() bool { return len(p.items("/api/v1/replicas")) == 0 })
}

// writeAdapter writes an adapter of one module, of rank 8.
func writeAdapter(t *testing.T, dir, module, config string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const at = "base_model.model.model.layers.0.self_attn."
	head := fmt.Sprintf(`{"%s%s.lora_A.weight":{"dtype":"F32","shape":[8,1],"data_offsets":[0,32]},"%s%s.lora_B.weight":{"dtype":"F32","shape":[1,8],"data_offsets":[32,64]}}`, at, module, at, module)
	weights := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	weights = append(append(weights, head...), make([]byte, 64)...)
	for file, b := range map[string][]byte{"adapter_config.json": []byte(config), "adapter_model.safetensors": weights} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAdapters: NAME:ADAPTER is listed and is loaded at its first request; an invalid
// adapter fails only its own requests.
func TestAdapters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeAdapter(t, filepath.Join(dir, "pirate"), "v_proj", `{"r":8}`)
	writeAdapter(t, filepath.Join(dir, "poet"), "q_proj", `{"r":8}`)
	writeAdapter(t, filepath.Join(dir, "wide"), "q_proj", `{"r":64}`)
	writeAdapter(t, filepath.Join(dir, "torn"), "q_proj", `{"r":8,"note":"broken"}`)
	adapters := ""
	for _, name := range []string{"pirate", "poet", "wide", "torn", "lost"} {
		adapters += fmt.Sprintf("{name: %s, source: %s, rank: 16}, ", name, filepath.Join(dir, name))
	}
	p := spawnAfter(t, asVLLM(t),
		map[string]string{"m.yaml": modelFile("m", "  source: "+tinyDir(t)+"\n  engine: vllm\n  args: [--max-loras, \"1\"]\n  adapters: ["+
			strings.TrimSuffix(adapters, ", ")+"]\n  resources: {memory: 64Mi}\n")}, "--warm", "off")
	r := p.chat("m:pirate", "") // loads model and adapter
	if r.status != 200 || !strings.HasPrefix(r.text(), "pirate of ") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := p.do("GET", "/v1/models", ""); !strings.Contains(r.body, `"id":"m:pirate"`) || !strings.Contains(r.body, `"parent":"m"`) {
		t.Errorf("%s", r.body)
	}
	for name, want := range map[string]struct {
		status int
		code   string
	}{"poet": {200, ""}, "wide": {400, "adapter_invalid"}, "torn": {400, "adapter_invalid"}, "cook": {404, "model_not_found"}} {
		if r := p.chat("m:"+name, ""); r.status != want.status || r.failure().Code != want.code {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if r := p.chat("m:lost", ""); r.status/100 == 2 || !strings.HasPrefix(r.failure().Code, "adapter_") {
		t.Errorf("one without a source: %d %s", r.status, r.body)
	}
	// There is one slot: the first adapter was evicted and is loaded again.
	if r := p.chat("m:pirate", ""); r.status != 200 || !strings.HasPrefix(r.text(), "pirate of ") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.chat("m", ""); r.status != 200 || !strings.HasPrefix(r.text(), "m of ") {
		t.Errorf("%d %s", r.status, r.body)
	}
	// The node's next heartbeat has it.
	var replica map[string]any
	p.eventually("what is loaded is told", func() bool {
		replica = p.items("/api/v1/replicas")[0]
		return fmt.Sprint(replica["adapters"]) == "[pirate]" && strings.Contains(fmt.Sprint(replica["adapter_notes"]), "pirate")
	})
	if got := fmt.Sprint(replica["adapters"]); got != "[pirate]" {
		t.Errorf("loaded: %s", got)
	}
	if got := fmt.Sprint(replica["adapter_notes"]); !strings.Contains(got, "pirate") || strings.Contains(got, "poet") {
		t.Errorf("notes: %s", got)
	}
}
