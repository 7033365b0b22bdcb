package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/testkit"
)

// secretOf returns a variable of a process's environment.
func secretOf(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Skip("environments are found in /proc")
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(name+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// TestEngineWantsItsKey: an engine on loopback requires its key, which is in no command
// line, list or log.
func TestEngineWantsItsKey(t *testing.T) {
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", ""), "b.yaml": tiny(t, "b", "")})
	keys := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		if r := p.chat(name, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		pid := p.engine(name)
		key := secretOf(t, pid, "EMBER_API_KEY")
		keys[key] = true
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if len(key) < 20 || bytes.Contains(line, []byte(key)) {
			t.Errorf("key %q, command line %q", key, line)
		}
	}
	if len(keys) != 2 {
		t.Errorf("two replicas share a key")
	}
	var shown strings.Builder
	for _, path := range []string{"/api/v1/replicas", "/api/v1/functions/default/a", "/api/v1/events", "/api/v1/nodes", "/api/v1/coldstarts", "/metrics", "/v1/models"} {
		shown.WriteString(p.do("GET", path, "", "Authorization", p.admin()).body)
	}
	for _, r := range p.items("/api/v1/replicas") {
		shown.WriteString(p.do("GET", fmt.Sprint("/api/v1/replicas/", r["id"], "/logs"), "", "Authorization", p.admin()).body)
		res, err := web.Post(fmt.Sprint(r["endpoint"])+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 401 {
			t.Errorf("an engine answers a request without its key: %d", res.StatusCode)
		}
	}
	shown.WriteString(p.log.String())
	for key := range keys {
		if strings.Contains(shown.String(), key) {
			t.Error("an engine's key is shown")
		}
	}
}

// TestVLLMGuard runs a real vLLM with every runtime control switched on and requests each
// of its endpoints. Adapters and sleep must work on it as well.
func TestVLLMGuard(t *testing.T) {
	checkpoint := os.Getenv("THAW_VLLM_MODEL")
	if os.Getenv("THAW_ENGINE_VLLM") == "" || checkpoint == "" {
		testkit.Missing(t, "THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set")
	}
	dir := t.TempDir()
	loraFor(t, checkpoint, filepath.Join(dir, "pirate"), 8)
	loraFor(t, checkpoint, filepath.Join(dir, "wide"), 32)
	p := start(t, map[string]string{"v.yaml": modelFile("v", "  source: "+checkpoint+`
  engine: vllm
  args: [--dtype, float32, --enforce-eager, --max-model-len, "256", --max-num-seqs, "8", --kv-cache-memory-bytes, "33554432"]
  env: {TORCHDYNAMO_DISABLE: "1", VLLM_TARGET_DEVICE: cpu, VLLM_SERVER_DEV_MODE: "1"}
  adapters: [{name: pirate, source: `+dir+`/pirate, rank: 8}, {name: wide, source: `+dir+`/wide}]
  scale: {idle: 20s}
`)}, "--warm", "off") // one start only: a warm parent would slow it down
	began := time.Now()
	// Woken first: on a busy machine the start takes longer than a client's timeout.
	if r := p.do("POST", "/api/v1/functions/default/v/wake", `{}`, "Authorization", p.admin()); r.status != 202 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	p.eventuallyWithin(6*time.Minute, "v is READY", func() bool { return p.state("default/v") == "READY" })
	t.Logf("READY after %v", time.Since(began).Round(time.Millisecond))
	replica := p.items("/api/v1/replicas")[0]
	engine := fmt.Sprint(replica["endpoint"])

	// Adds the endpoints in its own OpenAPI document to the list used by tests without vLLM.
	res, err := web.Get(engine + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Paths map[string]map[string]any }
	err = json.NewDecoder(res.Body).Decode(&doc)
	res.Body.Close()
	if err != nil || len(doc.Paths) < 30 {
		t.Fatalf("%d paths, %v", len(doc.Paths), err)
	}
	kept, err := os.ReadFile("../../activator/testdata/vllm-0.32.0-paths.txt")
	if err != nil {
		t.Fatal(err)
	}
	for path := range doc.Paths {
		if !slices.Contains(strings.Fields(string(kept)), path) {
			t.Errorf("%s is not in activator/testdata/vllm-0.32.0-paths.txt", path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		concrete := strings.NewReplacer("{adapter_name}", "pirate", "{response_id}", "resp_1").Replace(path)
		for method := range doc.Paths[path] {
			r := p.do(strings.ToUpper(method), concrete, `{"model":"v","prompt":"a","messages":[{"role":"user","content":"a"}],"input":"a","max_tokens":1,"lora_name":"x","lora_path":"/"}`)
			switch code := r.failure().Code; {
			case r.err != nil:
				t.Errorf("%s %s: %v", method, concrete, r.err)
			case openai.Public(concrete) && method == "post", concrete == "/v1/models":
				if code == "unknown_endpoint" && r.status != 404 {
					t.Errorf("%s %s: %d %s", method, concrete, r.status, r.body)
				}
			case r.status/100 == 2 && (concrete == "/metrics" || concrete == "/openapi.json"): // answered by thaw, not by the engine
				if strings.Contains(r.body, "vllm:") || strings.Contains(r.body, "load_lora_adapter") {
					t.Errorf("%s %s is the engine's own", method, concrete)
				}
			case concrete == "/health" && r.status == 200: // thaw's own as well; the engine's has no body
				if r.body != `{"status":"ok"}` {
					t.Errorf("GET /health is the engine's own: %q", r.body)
				}
			case r.status != 404 && r.status != 405 && r.status != 401:
				t.Errorf("%s %s: %d %s", method, concrete, r.status, r.body)
			}
		}
	}
	for _, path := range []string{"/is_sleeping", "/is_paused"} {
		res, err := web.Get(engine + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if strings.Contains(string(b), "true") {
			t.Errorf("%s: %s", path, b)
		}
	}
	log := p.do("GET", fmt.Sprint("/api/v1/replicas/", replica["id"], "/logs?tail=100000"), "", "Authorization", p.admin()).body
	for line := range strings.Lines(log) {
		for _, never := range []string{"/load_lora_adapter HTTP", "/collective_rpc HTTP", "/update_weights HTTP", "/pause HTTP", "/sleep HTTP", "/invocations HTTP"} {
			if strings.Contains(line, never) {
				t.Errorf("it was asked %s", line)
			}
		}
	}
	for _, pid := range p.processes() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("sk-")) {
			t.Errorf("a key on a command line: %q", line)
		}
	}
	// A request error that the engine reports in a stream becomes an HTTP error.
	if r := p.do("POST", "/v1/completions", `{"model":"v","prompt":"a","stream":true,"max_tokens":2,"structured_outputs":{"grammar":"root ::= ("}}`); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}

	base := p.chat("v", `"max_tokens":8`)
	pirate := p.chat("v:pirate", `"max_tokens":8`)
	if pirate.status != 200 || pirate.text() == base.text() {
		t.Errorf("%d %s, the base model says %s", pirate.status, pirate.body, base.body)
	}
	if r := p.chat("v:wide", `"max_tokens":1`); r.status != 400 || r.failure().Code != "adapter_invalid" {
		t.Errorf("a rank too large: %d %s", r.status, r.body)
	}

	// It sleeps when idle and wakes on a request.
	p.eventuallyWithin(2*time.Minute, "v sleeps", func() bool { return p.state("default/v") == "SLEEPING" })
	r := p.chat("v", `"max_tokens":8`)
	if r.status != 200 || r.text() != base.text() {
		t.Errorf("after its sleep: %d %s", r.status, r.body)
	}
	if tl := p.coldStart(r.header.Get("thaw-cold-start")); tl["tier"] != "SLEEPING" {
		t.Errorf("%v", tl)
	} else {
		t.Logf("awake after %v s", tl["total"])
	}
	if r := p.chat("v:pirate", `"max_tokens":8`); r.status != 200 || r.text() != pirate.text() {
		t.Errorf("the adapter after a sleep: %d %s", r.status, r.body)
	}
}

// loraFor writes an adapter of q_proj for a Llama checkpoint, whose weights change the
// model's answers.
func loraFor(t *testing.T, checkpoint, dir string, rank int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(checkpoint, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Hidden int `json:"hidden_size"`
		Heads  int `json:"num_attention_heads"`
		Head   int `json:"head_dim"`
		Layers int `json:"num_hidden_layers"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if c.Head == 0 {
		c.Head = c.Hidden / c.Heads
	}
	type tensor struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	head, data, seed := map[string]tensor{}, []byte{}, uint32(1)
	add := func(name string, rows, columns int) {
		at := len(data)
		for range rows * columns { // small numbers of either sign, in bf16
			seed = seed*1664525 + 1013904223
			data = binary.LittleEndian.AppendUint16(data, uint16(0x3e00|seed>>31<<15|seed>>20&0x7f))
		}
		head[name] = tensor{"BF16", []int{rows, columns}, [2]int{at, len(data)}}
	}
	for i := range c.Layers {
		at := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.q_proj.", i)
		add(at+"lora_A.weight", rank, c.Hidden)
		add(at+"lora_B.weight", c.Heads*c.Head, rank)
	}
	h, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	weights := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), data...)
	config := fmt.Sprintf(`{"peft_type":"LORA","task_type":"CAUSAL_LM","r":%d,"lora_alpha":16,"target_modules":["q_proj"],"lora_dropout":0.0,"bias":"none","base_model_name_or_path":"x","fan_in_fan_out":false,"inference_mode":true,"modules_to_save":null}`, rank)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string][]byte{"adapter_config.json": []byte(config), "adapter_model.safetensors": weights} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
