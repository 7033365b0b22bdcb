package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/huggingfacetest"
)

// TestResourcesLeftOut: resources that a model file leaves out are worked out from its source
// and the GPUs of the cluster, or of --gpu-memory, before it is rendered.
func TestResourcesLeftOut(t *testing.T) {
	hub := huggingfacetest.New(t)
	for _, name := range []string{"HF_ENDPOINT", "THAW_SOURCE_HOSTS", "HF_TOKEN"} {
		t.Setenv(name, hub.Getenv(name))
	}
	weights, err := os.ReadFile("../../functions/shipped/tiny/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	hub.Commit("main", map[string][]byte{
		"config.json":       []byte(`{"architectures":["MistralForCausalLM"],"model_type":"mistral","hidden_size":4096,"num_hidden_layers":64,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"max_position_embeddings":32768,"vocab_size":32000,"torch_dtype":"bfloat16"}`),
		"model.safetensors": weights,
	})
	source := "hf://" + huggingfacetest.Org + "/" + huggingfacetest.Repo
	file := write(t, "m.yaml", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen}\nspec: {source: '"+source+"', engine: vllm}\n")
	away := write(t, "m.yaml",
		"apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen}\nspec: {source: 'hf://nobody/none', engine: vllm}\n")
	image := map[string]string{"THAW_IMAGE": "example.com/thaw:1"}
	for _, x := range []struct {
		name, file, label string
		args              []string
		said, sent        string
	}{
		{"by the labels of the nodes", file, "81559", nil, "qwen: spec.resources is left out, and was worked out: {gpus: 1, gpuMemory: ", `"nvidia.com/gpu":"1"`},
		{"on several GPUs", file, "40960", []string{"--gpu-memory", "40Gi"}, "was worked out: {gpus: 2, gpuMemory: ", `"nvidia.com/gpu":"2"`},
		{"nodes without labels", file, "", nil, "nothing is reserved: no node has a GPU whose memory is known, so the engine runs on processors; write what thaw init prints, or resources: {memory: 4Gi} for processors; --gpu-memory 80Gi plans for", ""},
		{"a source that cannot be read", away, "81559", nil, "nothing is reserved: it could not be worked out: hf://nobody/none", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			var sent string
			cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/api/v1/nodes":
					io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "a", "labels": {"nvidia.com/gpu.memory": "`+x.label+`"}}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}, {"metadata": {"name": "b"}}]}`)
				case r.URL.Path == "/api/v1/namespaces/ml":
					io.WriteString(w, `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}}`)
				case r.Method == "PATCH" || r.Method == "POST":
					b, _ := io.ReadAll(r.Body)
					sent += strings.ReplaceAll(string(b), " ", "")
					w.Write(b)
				default:
					w.WriteHeader(404)
					io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found", "details": {"name": "qwen", "group": "serving.knative.dev", "kind": "services"}}`)
				}
			}))
			defer cluster.Close()
			out, errs, exit := thaw(t, image, append([]string{"deploy", "-f", x.file, "--skip-preflight", "--kubeconfig", kubeconfig(t, cluster.URL)}, x.args...)...)
			if exit != 0 || !strings.Contains(errs, x.said) || !strings.Contains(out, "qwen") {
				t.Errorf("exit %d %s%s", exit, out, errs)
			}
			if has := strings.Contains(sent, "nvidia.com/gpu"); sent == "" || has != (x.sent != "") || !strings.Contains(sent, x.sent) {
				t.Errorf("sent %s", sent)
			}
		})
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "gone"))
	out, errs, exit := thaw(t, image, "deploy", "-f", file, "--dry-run", "-o", "yaml", "--gpu-memory", "80Gi")
	if exit != 0 || !strings.Contains(errs, "was worked out") || !strings.Contains(out, `nvidia.com/gpu: "1"`) {
		t.Errorf("exit %d %s%s", exit, out, errs)
	}
	if out, errs, exit = thaw(t, image, "deploy", "-f", file, "--dry-run", "-o", "yaml"); exit != 0 ||
		!strings.Contains(errs, "--gpu-memory 80Gi") || strings.Contains(out, "nvidia.com/gpu") {
		t.Errorf("exit %d %s%s", exit, out, errs)
	}
}

// TestSourcesChecked: before anything is applied or rendered, GPUs that a checkpoint's heads
// cannot be divided among and several sets of weights are refused with file, key and way out.
func TestSourcesChecked(t *testing.T) {
	hub := huggingfacetest.New(t)
	for _, name := range []string{"HF_ENDPOINT", "THAW_SOURCE_HOSTS", "HF_TOKEN"} {
		t.Setenv(name, hub.Getenv(name))
	}
	weights, err := os.ReadFile("../../functions/shipped/tiny/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	hub.Commit("main", map[string][]byte{
		"config.json":       []byte(`{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"num_hidden_layers":2,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"max_position_embeddings":8192,"vocab_size":32000,"torch_dtype":"bfloat16"}`),
		"model.safetensors": weights,
	})
	hub.Commit("gguf", map[string][]byte{"m-Q4_K_M.gguf": []byte("GGUF"), "m-Q8_0.gguf": []byte("GGUF")})
	file := func(spec string) string {
		source := "hf://" + huggingfacetest.Org + "/" + huggingfacetest.Repo
		if strings.Contains(spec, "llamacpp") {
			source += "@gguf"
		}
		return write(t, "m.yaml", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen}\nspec: {source: '"+source+"', "+spec+"}\n")
	}
	for _, x := range []struct{ spec, said string }{
		{"engine: vllm, resources: {gpus: 3, gpuMemory: 40Gi}", "m.yaml:1: spec.resources.gpus: the model's 32 attention heads cannot be divided among 3 GPUs (gpus: 1, 2, 4, 8"},
		{"engine: sglang, resources: {gpus: 6}", "m.yaml:1: spec.resources.gpus: the model's 32 attention heads cannot be divided among 6 GPUs"},
		{"engine: llamacpp, resources: {memory: 4Gi}", "m.yaml:1: spec.weights: "},
		{"engine: llamacpp, weights: '*Q5*', resources: {memory: 4Gi}", "m.yaml:1: spec.weights: "},
		{"engine: vllm, resources: {gpus: 4, gpuMemory: 40Gi}", ""},
		{"engine: llamacpp, weights: '*Q4*', resources: {memory: 4Gi}", ""},
	} {
		more := []string{"--dry-run", "-o", "yaml", "--thaw-image", "example.com/thaw:1", "--image", "llamacpp=example.com/llama:1"}
		out, errs, exit := thaw(t, nil, append([]string{"deploy", "-f", file(x.spec)}, more...)...)
		if refused := exit != 0; refused != (x.said != "") || !strings.Contains(errs, x.said) || refused != (out == "") {
			t.Errorf("%s: exit %d %s%s", x.spec, exit, out, errs)
		}
		if out, errs, exit := thaw(t, nil, append([]string{"deploy", "-f", file(x.spec), "--skip-preflight"}, more...)...); exit != 0 || out == "" {
			t.Errorf("%s, --skip-preflight: exit %d %s%s", x.spec, exit, out, errs)
		}
	}
}
