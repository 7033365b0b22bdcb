package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

func programs(environ ...string) Programs {
	return Programs{
		Thaw: "/opt/thaw",
		Look: func(name string) (string, error) {
			if strings.Contains(name, "missing") {
				return "", os.ErrNotExist
			}
			if filepath.IsAbs(name) {
				return name, nil
			}
			return "/bin/" + name, nil
		},
		Environ: func() []string { return append([]string{"PATH=/bin", "HF_TOKEN=s3cret"}, environ...) },
		Host:    func() Host { return Host{Available: 8 << 30, Nodes: 1} },
	}
}

// no engine is told to run a checkpoint's code, whatever the checkpoint and the
// operator's environment hold; only the arguments of the model file do.
func TestNoRemoteCode(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.json":           `{"model_type":"x","auto_map":{"AutoConfig":"configuration_x.XConfig","AutoModel":"org/repo--modeling_x.X"},"trust_remote_code":true}`,
		"tokenizer_config.json": `{"auto_map":{"AutoTokenizer":["tokenization_x.XTokenizer",null]},"trust_remote_code":true}`,
		"x.gguf":                "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []functions.Engine{functions.EngineEmber, functions.EngineVLLM, functions.EngineSGLang, functions.EngineLlamaCpp} {
		for _, gpus := range [][]int{nil, {0, 1}} {
			for _, args := range [][]string{nil, {"--trust-remote-code"}} {
				cmd, err := programs("HF_HUB_OFFLINE=0", "TRANSFORMERS_OFFLINE=0").Prepare(Request{
					Name: "x", Path: dir, Port: 7001, GPUs: gpus, GPUMemory: 80 << 30, Scratch: t.TempDir(), Cache: t.TempDir(),
					Spec: functions.ModelSpec{Engine: e, Args: args, Adapters: []functions.Adapter{{Name: "a", Rank: 8}}},
				})
				if err != nil {
					t.Fatalf("%s: %v", e, err)
				}
				told := 0
				for _, s := range slices.Concat(cmd.Argv, cmd.Env) {
					if s = strings.ToLower(strings.ReplaceAll(s, "_", "-")); strings.Contains(s, "remote-code") {
						told++
					}
				}
				if told != len(args) {
					t.Errorf("%s on GPUs %v with args %v: %v %v", e, gpus, args, cmd.Argv, cmd.Env)
				}
				if row, _ := engineRow(e); row.python &&
					(!slices.Contains(cmd.Env, "HF_HUB_OFFLINE=1") || !slices.Contains(cmd.Env, "TRANSFORMERS_OFFLINE=1")) {
					t.Errorf("%s may download code: %v", e, cmd.Env)
				}
			}
		}
	}
}

func TestPrepare(t *testing.T) {
	models := t.TempDir()
	for _, f := range []string{"mmproj-q.gguf", "q-00001-of-00002.gguf", "q-00002-of-00002.gguf"} {
		if err := os.WriteFile(filepath.Join(models, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sees := t.TempDir()
	for f, size := range map[string]int{"Q4/m.gguf": 9, "mmproj-BF16.gguf": 3, "mmproj-F16.gguf": 2, "mmproj-F32.gguf": 4, "mmproj.txt": 0} {
		made := os.MkdirAll(filepath.Join(sees, "Q4"), 0o700)
		if err := cmp.Or(made, os.WriteFile(filepath.Join(sees, f), make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	gpus := functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len=4096"},
		Resources: functions.Resources{GPUs: 2, GPUMemory: 40 << 30}, Adapters: []functions.Adapter{{Name: "a", Rank: 16}, {Name: "b", Rank: 64}}}
	for _, c := range []struct {
		name    string
		r       Request
		environ []string
		argv    string
		dir     string   // that it runs in
		env     []string // must be there
		without []string // must not
	}{
		{name: "ember", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineEmber, Args: []string{"--threads", "2"}}, Path: "/m", Notify: "@n"},
			argv: "/opt/thaw engine ember --model /m --served-model-name tiny --host 127.0.0.1 --port 7001 --threads 2",
			env:  []string{"PATH=/bin", "NOTIFY_SOCKET=@n", "CUDA_VISIBLE_DEVICES="}, without: []string{"HF_TOKEN=s3cret"}},
		{name: "ember with adapters", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineEmber, Args: []string{"--max-loras=1"}, Adapters: []functions.Adapter{{Name: "a", Rank: 4}, {Name: "b"}}}, Path: "/m"},
			argv: "/opt/thaw engine ember --model /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-lora --max-lora-rank 8 --max-loras=1", without: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"}},
		{name: "ember elsewhere", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineEmber}, Path: "/m"}, environ: []string{"THAW_ENGINE_EMBER=/x/thaw"},
			argv: "/x/thaw engine ember --model /m --served-model-name tiny --host 127.0.0.1 --port 7001", without: []string{"THAW_ENGINE_EMBER=/x/thaw"}},
		{name: "vllm", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineVLLM, Env: map[string]string{"HF_TOKEN": "mine", "HF_HUB_OFFLINE": "0"}}, Path: "/m", Notify: "@n"},
			argv: "/bin/vllm serve /m --served-model-name tiny --host 127.0.0.1 --port 7001 --shutdown-timeout 1 --dtype float32 --enforce-eager " +
				"--kv-cache-memory-bytes 268435456 --distributed-executor-backend uni",
			env: []string{"HF_TOKEN=mine", "HF_HUB_OFFLINE=0", "TORCHDYNAMO_DISABLE=1", "VLLM_ENABLE_V1_MULTIPROCESSING=0"}, without: []string{"HF_HUB_OFFLINE=1", "NOTIFY_SOCKET=@n"}},
		{name: "vllm on GPUs", r: Request{Spec: gpus, Path: "/m", GPUs: []int{1, 3}, GPUMemory: 80 << 30},
			argv: "/bin/vllm serve /m --served-model-name tiny --host 127.0.0.1 --port 7001 --tensor-parallel-size 2 --gpu-memory-utilization " +
				"0.500 --shutdown-timeout 1 --enable-lora --max-loras 2 --max-lora-rank 64 --max-model-len=4096",
			without: []string{"VLLM_ENABLE_V1_MULTIPROCESSING=0"},
			env:     []string{"CUDA_VISIBLE_DEVICES=1,3", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "HF_HUB_OFFLINE=1"}},
		{name: "sglang", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang}, Path: "/m"},
			argv: "/bin/sglang serve --model-path /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-metrics"},
		{name: "sglang on a GPU that others use", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang, Resources: functions.Resources{GPUs: 1, GPUMemory: 40 << 30}}, Path: "/m", GPUs: []int{0}, GPUMemory: 80 << 30, GPUFree: 60 << 30},
			argv: "/bin/sglang serve --model-path /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-metrics " +
				"--mem-fraction-static 0.608"},
		{name: "sglang on GPUs whose free memory is not known", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang, Resources: functions.Resources{GPUs: 2, GPUMemory: 40 << 30}}, Path: "/m", GPUs: []int{0, 1}, GPUMemory: 80 << 30},
			argv: "/bin/sglang serve --model-path /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-metrics --tp-size 2 " +
				"--mem-fraction-static 0.448"},
		{name: "sglang with all of a GPU", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang, Resources: functions.Resources{GPUs: 1, GPUMemory: 80 << 30}}, Path: "/m", GPUs: []int{0}, GPUMemory: 80 << 30, GPUFree: 79 << 30},
			argv: "/bin/sglang serve --model-path /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-metrics " +
				"--mem-fraction-static 0.939"},
		{name: "sglang with its own share", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang, Args: []string{"--mem-fraction-static=0.7"}, Resources: functions.Resources{GPUs: 1, GPUMemory: 40 << 30}}, Path: "/m", GPUs: []int{0}, GPUMemory: 80 << 30},
			argv: "/bin/sglang serve --model-path /m --served-model-name tiny --host 127.0.0.1 --port 7001 --enable-metrics " +
				"--mem-fraction-static=0.7"},
		{name: "llamacpp", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineLlamaCpp}, Path: models}, environ: []string{"THAW_ENGINE_LLAMACPP=/x/llama"},
			argv: "/x/llama --model " + models + "/q-00001-of-00002.gguf --alias tiny --host 127.0.0.1 --port 7001 --metrics " +
				"--mmproj " + models + "/mmproj-q.gguf"},
		{name: "llamacpp that sees", environ: []string{"THAW_ENGINE_LLAMACPP=/x/llama"},
			r: Request{Spec: functions.ModelSpec{Engine: functions.EngineLlamaCpp}, Path: sees},
			argv: "/x/llama --model " + sees + "/Q4/m.gguf --alias tiny --host 127.0.0.1 --port 7001 --metrics " +
				"--mmproj " + sees + "/mmproj-F16.gguf"},
		{name: "llamacpp with a projector of its own", environ: []string{"THAW_ENGINE_LLAMACPP=/x/llama"},
			r:    Request{Spec: functions.ModelSpec{Engine: functions.EngineLlamaCpp, Args: []string{"--no-mmproj"}}, Path: sees},
			argv: "/x/llama --model " + sees + "/Q4/m.gguf --alias tiny --host 127.0.0.1 --port 7001 --metrics --no-mmproj"},
		{name: "command", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineCommand, Args: []string{"ollama", "--port={port}", "{model}:{name}"}, Env: map[string]string{"HOST": "127.0.0.1:{port}"}}, Path: "/m"},
			argv: "/bin/ollama --port=7001 /m:tiny", env: []string{"HOST=127.0.0.1:7001"}},
		{name: "command beside its file", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineCommand, Args: []string{"./serve", "{port}"}}, Dir: models},
			argv: models + "/serve 7001", dir: models},
		{name: "command whose file is on another machine", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineCommand, Args: []string{"serve", "{port}"}}, Dir: "peer://n/files"},
			argv: "/bin/serve 7001"},
		{name: "command with a folder", r: Request{Spec: functions.ModelSpec{Engine: functions.EngineCommand, Args: []string{"python3", "./main.py", "{port}"}, Folder: models}, Dir: "/data/functions"},
			argv: "/bin/python3 ./main.py 7001", dir: models},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.r.Name, c.r.Port = "tiny", 7001
			cmd, err := programs(c.environ...).Prepare(c.r)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(cmd.Argv, " "); got != c.argv || cmd.Dir != c.dir {
				t.Errorf("argv %s in %q\nwant %s in %q", got, cmd.Dir, c.argv, c.dir)
			}
			for _, e := range c.env {
				if !slices.Contains(cmd.Env, e) {
					t.Errorf("no %s in %q", e, cmd.Env)
				}
			}
			for _, e := range c.without {
				if slices.Contains(cmd.Env, e) {
					t.Errorf("%s in the environment", e)
				}
			}
			if cmd.URL != "http://127.0.0.1:7001" || cmd.Health != "/health" {
				t.Errorf("%s %s", cmd.URL, cmd.Health)
			}
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	spec := func(e functions.Engine, args ...string) functions.ModelSpec {
		return functions.ModelSpec{Engine: e, Args: args}
	}
	script := filepath.Join(t.TempDir(), "x.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := programs()
	missing.Look = func(string) (string, error) { return "", os.ErrNotExist }
	for _, c := range []struct {
		name string
		p    Programs
		r    Request
		want string
	}{
		{"program missing", missing, Request{Spec: spec(functions.EngineVLLM), Path: "/m"}, `engine vllm: program "vllm" not found on PATH; install it or set THAW_ENGINE_VLLM to its path`},
		{"override missing", Programs{Look: missing.Look, Environ: func() []string { return []string{"THAW_ENGINE_VLLM=/x"} }}, Request{Spec: spec(functions.EngineVLLM), Path: "/m"}, `engine vllm: THAW_ENGINE_VLLM=/x: file does not exist`},
		{"command missing", programs(), Request{Spec: spec(functions.EngineCommand, "missing", "{port}")}, `engine command: program "missing" not found: file does not exist`},
		{"command not to be run", Programs{}, Request{Spec: spec(functions.EngineCommand, script, "{port}")}, `engine command: program "` + script + `" cannot be run: permission denied; chmod +x it`},
		{"command that is a folder", Programs{}, Request{Spec: spec(functions.EngineCommand, filepath.Dir(script), "{port}")}, `engine command: program "` + filepath.Dir(script) + `" is a folder; name the program in it`},
		{"other host", programs(), Request{Spec: spec(functions.EngineVLLM, "--host=0.0.0.0"), Path: "/m"}, `args: --host is set by thaw and cannot be given`},
		{"other spelling", programs(), Request{Spec: spec(functions.EngineVLLM, "--served_model_name", "x"), Path: "/m"}, `args: --served-model-name is set by thaw and cannot be given`},
		{"no port", programs(), Request{Spec: spec(functions.EngineCommand, "x")}, `engine command: {port} is in neither args nor env, so it would listen on another port`},
		{"no args", programs(), Request{Spec: spec(functions.EngineCommand)}, `engine command: args is empty; it is the whole argv, with {port}, {model} and {name} filled in`},
		{"no source", programs(), Request{Spec: spec(functions.EngineEmber)}, `engine ember: the model has no source`},
		{"model without source", programs(), Request{Spec: spec(functions.EngineCommand, "x", "{port}", "{model}")}, `engine command: {model} is used, but the model has no source`},
		{"unknown", programs(), Request{Spec: spec("tgi")}, `unknown engine "tgi"`},
		{"no gguf", programs(), Request{Spec: spec(functions.EngineLlamaCpp), Path: t.TempDir()}, "engine llamacpp: no .gguf file in "},
		{"no thaw", Programs{Environ: func() []string { return nil }}, Request{Spec: spec(functions.EngineEmber), Path: "/m"}, "engine ember: the path of the thaw program is not known; set THAW_ENGINE_EMBER"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.r.Name, c.r.Port = "tiny", 7001
			if _, err := c.p.Prepare(c.r); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestEnviron(t *testing.T) {
	keep := []string{"PATH=/bin", "HOME=/root", "TOKENIZERS_PARALLELISM=false", "CUDA_HOME=/c", "LD_LIBRARY_PATH=/l", "VLLM_CACHE_ROOT=/v",
		"HTTP_PROXY=http://proxy:3128", "MONKEY=1", "KEYBOARD=us", "EMPTY=", "PASSAGE=1"}
	drop := []string{"THAW_KEY=x", "THAW_SERVER=y", "AZURE_CLIENT_ID=x", "AWS_REGION=x", "HF_TOKEN=x", "HUGGING_FACE_HUB_TOKEN=x", "OPENAI_API_KEY=x",
		"DB_PASSWORD=x", "MY_SECRET=x", "MY_SECRETS_FILE=x", "STORAGE_CONNECTION_STRING=x", "GOOGLE_APPLICATION_CREDENTIALS=/x", "NOTIFY_SOCKET=/run/x",
		"LISTEN_FDS=1", "DATABASE_URL=postgres://u:p@h/db", "STORE=DefaultEndpointsProtocol=https;AccountKey=x", "BLOB=https://a/b?sv=1&sig=x",
		"https_proxy=http://u:p@proxy", "api_key=x", "SSH_AUTH_SOCK=/x", "=odd", "odd"}
	if got := Environ(slices.Concat(keep, drop)); !slices.Equal(got, keep) {
		t.Errorf("got  %q\nwant %q", got, keep)
	}
}

const vllmMetrics = `# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 2.0
vllm:num_requests_running{engine="1",model_name="x"} 1.0
vllm:num_requests_waiting{engine="0"} 4.0
vllm:generation_tokens_total{engine="0"} 120.0
vllm:prompt_tokens_total{engine="0"} 1e3
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_queries_total{engine="0"} 200
vllm:prefix_cache_hits_total{engine="0"} 50
vllm:time_to_first_token_seconds_count{engine="0"} 9
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 9
vllm:request_success_total{finished_reason="stop"} 5
vllm:request_success_total{finished_reason="abort"} 1
`

func TestParseMetrics(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Metrics
	}{
		{"vllm", vllmMetrics, Metrics{Running: 3, Waiting: 4, Tokens: 1120, Flow: true, Load: true, KVUsage: .25, HitRate: .25, FirstTokens: 9, Finished: 6, Counted: true}},
		{"llama", "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\nllamacpp:n_decode_total 7\n", Metrics{Running: 1, Waiting: 2, Tokens: 7, Flow: true, Load: true}},
		{"sglang", "sglang:num_running_reqs{a=\"b\"} 1\nsglang:cache_hit_rate 0.5\nsglang:token_usage 0.125\n", Metrics{Running: 1, Load: true, KVUsage: .125, HitRate: .5}},
		{"other", "go_goroutines 7\n", Metrics{}},
		{"odd", "vllm:num_requests_running NaN\nvllm:num_requests_running -3\nvllm:num_requests_waiting{ 4\nvllm:kv_cache_usage_perc 7\n{} 1\nx\n", Metrics{Load: true, KVUsage: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseMetrics([]byte(c.text)); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte(vllmMetrics))
	f.Add([]byte("vllm:num_requests_running{a=\"}\n} 1e309"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := parseMetrics(b)
		if m.Running < 0 || m.Waiting < 0 || !(m.HitRate >= 0 && m.HitRate <= 1) || !(m.KVUsage >= 0 && m.KVUsage <= 1) {
			t.Errorf("%+v", m)
		}
	})
}

func FuzzParseNotice(f *testing.F) {
	f.Add("READY=1\nSTATUS=ready\n")
	f.Add("STATUS=loading percent=41\n")
	f.Fuzz(func(t *testing.T, s string) {
		if p := parseNotice(s).Percent; p < -1 || p > 100 {
			t.Error(p)
		}
	})
}

// server is an engine that answers as told.
func server(t *testing.T, e functions.Engine, routes map[string]http.HandlerFunc) *Client {
	t.Helper()
	mux := http.NewServeMux()
	for p, h := range routes {
		mux.HandleFunc(p, h)
	}
	s := httptest.NewServer(mux)
	c := New(Command{Engine: e, URL: s.URL, Health: "/health", Name: "tiny"})
	t.Cleanup(func() { c.Close(); s.Close() })
	return c
}

func respond(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestToken(t *testing.T) {
	const completions, chat, embeddings = "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/embeddings"
	ok := `{"choices":[{"text":"x"}]}`
	for _, c := range []struct {
		name   string
		routes map[string]http.HandlerFunc
		want   string // error, "" for none
		path   string
	}{
		{"completions", map[string]http.HandlerFunc{completions: respond(200, ok)}, "", "/v1/completions"},
		{"a token without text", map[string]http.HandlerFunc{completions: respond(200, `{"choices":[{"text":""}],"usage":{"completion_tokens":1}}`)}, "", "/v1/completions"},
		{"chat only", map[string]http.HandlerFunc{chat: respond(200, `{"choices":[{"message":{"content":"x"}}]}`)}, "", "/v1/chat/completions"},
		{"thinks first", map[string]http.HandlerFunc{chat: respond(200, `{"choices":[{"message":{"content":null,"reasoning_content":"hm"}}]}`)}, "", "/v1/chat/completions"},
		{"embeds only", map[string]http.HandlerFunc{completions: respond(400, `{"error":{"message":"does not support"}}`), embeddings: respond(200, `{"data":[{"embedding":[0.1]}]}`)}, "", "/v1/embeddings"},
		{"an empty token", map[string]http.HandlerFunc{completions: respond(200, `{"choices":[{"text":""}]}`)}, "", "/v1/completions"},
		{"no token", map[string]http.HandlerFunc{completions: respond(200, `{"choices":[]}`)}, `/v1/completions: no token in the answer: {"choices":[]}`, ""},
		{"no JSON", map[string]http.HandlerFunc{completions: respond(200, "hello\nworld")}, `/v1/completions: no token in the answer: hello`, ""},
		{"nothing", nil, "HTTP 404: 404 page not found", ""},
		{"broken", map[string]http.HandlerFunc{completions: respond(500, `{"error":{"message":"CUDA error"}}`)}, "HTTP 500: CUDA error", ""},
		{"broken otherwise", map[string]http.HandlerFunc{completions: respond(500, `{"message":"old vLLM"}`)}, "HTTP 500: old vLLM", ""},
		{"redirects", map[string]http.HandlerFunc{completions: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusTemporaryRedirect) }}, "HTTP 307 to /x", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := server(t, functions.EngineVLLM, c.routes)
			err := e.Token(t.Context())
			if got := fmt.Sprint(err); err == nil && c.want != "" || err != nil && got != c.want {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if c.path != "" && e.probe.Load().path != c.path {
				t.Errorf("asked at %s", e.probe.Load().path)
			}
		})
	}
}

func TestMetricsAndCalls(t *testing.T) {
	var asked []string
	note := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			asked = append(asked, r.Method+" "+r.URL.String()+" "+string(b))
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	e := server(t, functions.EngineVLLM, map[string]http.HandlerFunc{
		"/metrics": respond(200, vllmMetrics), "/v1/load_lora_adapter": note(200, "Success"), "/v1/unload_lora_adapter": note(404, `{"error":{"message":"no such adapter"}}`),
		"/sleep": note(200, ""), "/wake_up": note(200, ""), "/collective_rpc": note(200, `{"results":[null]}`), "/is_sleeping": note(200, `{"is_sleeping":true}`),
	})
	ctx := t.Context()
	if m, err := e.Metrics(ctx); err != nil || m.Running != 3 {
		t.Errorf("%+v %v", m, err)
	}
	if err := e.LoadAdapter(ctx, "pirate", "/a"); err != nil {
		t.Error(err)
	}
	var se *StatusError
	if err := e.UnloadAdapter(ctx, "pirate"); !errors.As(err, &se) || se.Error() != "HTTP 404: no such adapter" {
		t.Error(err)
	}
	if err := errors.Join(e.Sleep(ctx, 1, SleepWait), e.Wake(ctx, 1), e.Sleep(ctx, 2, SleepAbort), e.Wake(ctx, 2)); err != nil {
		t.Error(err)
	}
	if s, err := e.Sleeping(ctx); err != nil || !s {
		t.Error(s, err)
	}
	want := []string{`POST /v1/load_lora_adapter {"lora_name":"pirate","lora_path":"/a"}`, `POST /v1/unload_lora_adapter {"lora_name":"pirate"}`,
		"POST /sleep?level=1&mode=wait ", "POST /wake_up ", "POST /sleep?level=2&mode=abort ",
		"POST /wake_up?tags=weights ", `POST /collective_rpc {"method":"reload_weights"}`, "POST /wake_up?tags=kv_cache ", "GET /is_sleeping "}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	if level, err := e.SleepLevel(ctx); err != nil || level != 1 {
		t.Error(level, err)
	}
	deep := server(t, functions.EngineVLLM, map[string]http.HandlerFunc{"/is_sleeping": respond(200, `{"is_sleeping":true}`),
		"/metrics": respond(200, "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 0.0\nvllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 1.0\n")})
	if level, err := deep.SleepLevel(ctx); err != nil || level != 2 {
		t.Error(level, err)
	}
	l := server(t, functions.EngineLlamaCpp, nil)
	if _, err := l.Metrics(ctx); !errors.Is(err, ErrNoMetrics) {
		t.Error(err)
	}
	if !errors.Is(l.Sleep(ctx, 1, SleepWait), ErrUnsupported) || !errors.Is(l.LoadAdapter(ctx, "a", "/b"), ErrUnsupported) {
		t.Error("calls that llama.cpp has not")
	}
	if a, s := Supports(functions.EngineVLLM); !a || !s {
		t.Error("vLLM has both")
	}
}

// reserved is an address that refuses connections and is given to no other process,
// until the socket listens.
func reserved(t *testing.T) (fd int, addr string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}

// Readiness is noticed soon after it is there, whatever came before.
func TestAwait(t *testing.T) {
	fd, addr := reserved(t)
	e := New(Command{Engine: functions.EngineVLLM, URL: "http://" + addr, Health: "/health"})
	defer e.Close()
	// It is ready for the tenth who asks: how soon that is Pace says, and the clock
	// of a machine that does other things as well does not.
	const ready = 10
	var asked atomic.Int32
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < ready {
			w.WriteHeader(503)
		}
	})}
	defer srv.Close()
	go func() {
		<-time.After(100 * time.Millisecond)
		if err := syscall.Listen(fd, 16); err != nil {
			t.Error(err)
			return
		}
		f := os.NewFile(uintptr(fd), addr)
		ln, err := net.FileListener(f)
		f.Close()
		if err != nil {
			t.Error(err)
			return
		}
		srv.Serve(ln)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	listening := 0
	if err := e.Await(ctx, func() { listening++ }); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); listening != 1 || n != ready {
		t.Errorf("listening told %d times, noticed when asked for the %dth time, not the %dth", listening, n, ready)
	}
	srv.Close()
	gone, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := e.Await(gone, func() { t.Error("nobody listens") }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestPace(t *testing.T) {
	for _, c := range []struct{ elapsed, want time.Duration }{
		{0, time.Millisecond}, {50 * time.Millisecond, time.Millisecond}, {time.Second, 10 * time.Millisecond}, {time.Minute, 50 * time.Millisecond},
	} {
		if got := ProbeInterval(c.elapsed); got != c.want {
			t.Errorf("after %v: %v, want %v", c.elapsed, got, c.want)
		}
	}
}

func TestNotify(t *testing.T) {
	n, err := ListenNotify()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.Addr, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 200 { // more than are read
		fmt.Fprintf(c, "STATUS=loading percent=%d\n", i/2)
	}
	io.WriteString(c, "READY=1\nSTATUS=ready\n")
	timeout := time.After(30 * time.Second)
	last := -1
	for {
		select {
		case m := <-n.C():
			if m.Ready {
				return
			}
			if m.Percent <= last-1 || m.Status == "" {
				t.Errorf("%+v after %d", m, last)
			}
			last = m.Percent
		case <-timeout:
			t.Fatal("READY was lost")
		}
	}
}
