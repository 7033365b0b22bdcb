package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/testkit"
)

// served is a model in a pod of the rendered shape, on a node with a loader: by
// Knative's own class and the cluster's own ingress, so that the shim alone is what
// is looked at.
type served struct {
	*cluster
	name, store string
	folder      string // on the node, that holds the weights
	loader      *exec.Cmd
	heard       *lines // what the loader says
	http        *http.Client
	url         string
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// toHost has every request name a host that no DNS knows.
type toHost struct{ host string }

func (h toHost) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = h.host
	return http.DefaultTransport.RoundTrip(r)
}

// serving applies a model file whose source is the folder, with what change does
// to the Knative Service that is rendered.
func serving(t *testing.T, name, model, folder string, change func(service map[string]any), args ...string) *served {
	t.Helper()
	ingress, programs := os.Getenv("THAW_CLUSTER_INGRESS"), os.Getenv("THAW_PROGRAMS")
	c := open(t)
	if ingress == "" || programs == "" {
		t.Fatal("THAW_CLUSTER_INGRESS and THAW_PROGRAMS say not where requests go and programs are: make e2e")
	}
	s := &served{cluster: c, name: name, store: knative.DefaultStore + "-" + c.namespace, folder: folder, heard: &lines{}}
	s.url = strings.TrimSuffix(ingress, "/")
	s.http = &http.Client{Transport: toHost{name + "." + c.namespace + "." + os.Getenv("THAW_ROUTE_DOMAIN")}}
	if err := os.MkdirAll(filepath.Join(s.store, knative.SocketFolder), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stopLoader(syscall.SIGKILL)
		os.RemoveAll(s.store)
		if t.Failed() {
			t.Logf("the loader says:\n%s", s.heard)
		}
	})
	for _, f := range knative.Features {
		c.kubectl("", "patch", "configmap", f.Map, "--namespace", "knative-serving", "--type", "merge", "-p", fmt.Sprintf(`{"data": {%q: %q}}`, f.Key, f.Value))
	}
	file := write(t, "m.yaml", model)
	printed, errs, exit := c.knative(append([]string{"deploy", "-f", file, "--dry-run", "-o", "json", "--thaw-image", image(), "--store", s.store}, args...)...)
	if exit != 0 {
		t.Fatal(errs)
	}
	printed = strings.ReplaceAll(printed, `hf://a/b`, "file://"+folder) // which deploy refuses
	var service map[string]any
	if err := json.Unmarshal([]byte(printed), &service); err != nil {
		t.Fatal(err)
	}
	at[map[string]any](service, "metadata", "annotations")[knative.IngressAnnotation] = "edge.ingress.networking.knative.dev"
	at[map[string]any](service, "spec", "template", "metadata", "annotations")[knative.ClassAnnotation] = "kpa.autoscaling.knative.dev"
	change(service)
	b, err := json.Marshal(service)
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("acceptance", func() (bool, string) {
		out, err := c.try(string(b), "apply", "-f", "-")
		return err == nil, out
	})
	c.eventually("a Ready service", func() (bool, string) {
		out, _ := c.try("", "get", "ksvc", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		return strings.Contains(out, `"True"`), out
	})
	return s
}

// image is the one with thaw in the cluster.
func image() string { return cmp.Or(os.Getenv("THAW_CLUSTER_IMAGE"), "dev.local/thaw:test") }

// at is what lies in a document under the keys.
func at[T any](doc map[string]any, keys ...string) (v T) {
	for _, k := range keys[:len(keys)-1] {
		doc, _ = doc[k].(map[string]any)
	}
	v, _ = doc[keys[len(keys)-1]].(T)
	return v
}

func (s *served) startLoader() {
	s.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv("THAW_PROGRAMS"), "thaw"), "loader", "--store", s.store, "--node", "node1", "--addr", "off",
		"--keep-free", "0", "--folder", s.folder)
	cmd.Stdout, cmd.Stderr = s.heard, s.heard
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.loader = cmd
}

func (s *served) stopLoader(sig syscall.Signal) {
	if s.loader != nil {
		s.loader.Process.Signal(sig)
		s.loader.Wait()
		s.loader = nil
	}
}

// ask is a request to the model by the cluster's ingress; the error of one that
// was not answered is in the text.
func (s *served) ask(method, path, body string) (status int, text string) {
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := s.http.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, fmt.Sprint(string(b), err)
}

// pod is the only one of the model.
func (s *served) pod(path string) string {
	s.Helper()
	return s.kubectl("", "get", "pods", "-l", knative.ModelLabel+"="+s.name, "-o", "jsonpath={.items[0]"+path+"}")
}

// podProcesses lists the processes of a pod, as the node sees them, by their commands.
func podProcesses(uid string) (found map[int]string) {
	found = map[int]string{}
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range groups {
		b, _ := os.ReadFile(path)
		if !bytes.Contains(b, []byte(uid)) && !bytes.Contains(b, []byte(strings.ReplaceAll(uid, "-", "_"))) {
			continue
		}
		var pid int
		fmt.Sscanf(path, "/proc/%d/", &pid)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
	}
	return found
}

// gone deletes the service and waits until nothing of its pod runs on the node.
func (s *served) gone() {
	s.Helper()
	uid := s.pod(".metadata.uid")
	if len(podProcesses(uid)) == 0 {
		s.Error("no process of the pod is seen, so none would be missed")
	}
	s.kubectl("", "delete", "ksvc", s.name, "--wait=false")
	s.eventually("no process of the pod", func() (bool, string) {
		left := podProcesses(uid)
		return len(left) == 0, fmt.Sprint(left)
	})
	s.eventually("the loader to know", func() (bool, string) {
		return s.loader == nil || strings.Contains(s.heard.String(), "hung up"), s.heard.String()
	})
}

// TestClusterRuntime: thaw's own shim and loader in the shape that is rendered,
// and an engine that is part of thaw.
func TestClusterRuntime(t *testing.T) {
	folder, err := filepath.Abs("../../functions/shipped/tiny")
	if err != nil {
		t.Fatal(err)
	}
	s := serving(t, "pod", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: pod}\nspec:\n  source: hf://a/b\n  engine: ember\n"+
		"  resources: {memory: 64Mi}\n  deadlines: {drain: 5s}\n", folder, func(map[string]any) {})

	// The first request wakes it; its node has no loader yet.
	type reply struct {
		status int
		text   string
	}
	first := make(chan reply, 1)
	body := `{"model":"pod","messages":[{"role":"user","content":"What is thaw?"}],"max_tokens":8}`
	go func() {
		status, text := s.ask("POST", "/v1/chat/completions", body)
		first <- reply{status, text}
	}()
	s.eventually("a shim that waits", func() (bool, string) {
		out, _ := s.try("", "logs", "-l", knative.ModelLabel+"="+s.name, "-c", "model")
		return strings.Contains(out, "the weights come from it"), out
	})
	s.startLoader()
	if r := <-first; r.status != 200 || !strings.Contains(r.text, `"chat.completion"`) {
		t.Fatalf("%d %s", r.status, r.text)
	}
	var line functions.Timeline
	status, text := s.ask("GET", "/timeline", "")
	if err := json.Unmarshal([]byte(strings.TrimSuffix(text, "<nil>")), &line); err != nil || status != 200 || line.State != functions.Ready ||
		line.Node != "node1" || len(line.Phases) < 4 {
		t.Errorf("the timeline: %d %s", status, text)
	}
	uid := s.pod(".metadata.uid")
	s.eventually("the loader knows the pod "+uid, func() (bool, string) { // its words come through a pipe
		return strings.Contains(s.heard.String(), uid), s.heard.String()
	})
	for _, path := range []string{"/metrics", "/v1/load_lora_adapter", "/sleep"} {
		if status, text := s.ask("POST", path, "{}"); status != 404 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}

	// The loader is killed: the pod serves on, and comes back to the next one.
	s.stopLoader(syscall.SIGKILL)
	if status, text := s.ask("POST", "/v1/chat/completions", body); status != 200 {
		t.Errorf("without a loader: %d %s", status, text)
	}
	s.startLoader()
	s.eventually("the pod at the next loader", func() (bool, string) {
		return strings.Count(s.heard.String(), "a pod has connected") == 2, s.heard.String()
	})

	// The engine is killed: not ready, a reason, and Kubernetes starts it again.
	ip := s.pod(".status.podIP")
	var engine int
	for pid, line := range podProcesses(uid) {
		if strings.Contains(line, " engine ember ") {
			engine = pid
		}
	}
	if engine < 2 {
		t.Fatalf("no engine in %v", podProcesses(uid))
	}
	syscall.Kill(engine, syscall.SIGKILL)
	s.eventually("another start", func() (bool, string) {
		out := s.pod(".status.containerStatuses[?(@.name==\"model\")]")
		return strings.Contains(out, `"restartCount":1`) && strings.Contains(out, "ended while ready: ended by signal 9") && strings.Contains(out, `"exitCode":1`), out
	})
	s.eventually("an answer again", func() (bool, string) {
		status, text := s.ask("POST", "/v1/chat/completions", body)
		return status == 200, fmt.Sprint(status, text)
	})
	if now := s.pod(".status.podIP"); now != ip {
		t.Errorf("another pod: %s, was %s", now, ip)
	}
	s.gone()
}

// TestClusterVLLM: a real vLLM in a pod, its environment and the system's
// libraries mounted read-only from the node: deployed, asked by an official client
// while it is cold, back to zero, and nothing of it left.
func TestClusterVLLM(t *testing.T) {
	program, folder := os.Getenv("THAW_ENGINE_VLLM"), os.Getenv("THAW_VLLM_MODEL")
	if program == "" || folder == "" {
		testkit.Missing(t, `THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set: eval "$(.ci/components)" sets them`)
	}
	venv := filepath.Dir(filepath.Dir(program))
	python0 := filepath.Join(venv, "bin", "python")
	python, err := filepath.EvalSymlinks(python0)
	if err != nil {
		t.Fatal(err)
	}
	// What an image of vLLM holds, see deploy/images.
	found := t.TempDir()
	ask := exec.Command(python0, filepath.Join("..", "..", "deploy", "images", "modelinfos.py"), "LlamaForCausalLM")
	ask.Env = append(os.Environ(), "VLLM_TARGET_DEVICE=cpu", "VLLM_CACHE_ROOT="+found)
	if out, err := ask.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mounts := map[string]string{venv: venv, "/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/bin": "/usr/bin", "/etc/ssl": "/etc/ssl", "/opt/vllm": found}
	if tree := filepath.Dir(filepath.Dir(python)); tree != "/usr" {
		mounts[tree] = tree
	}
	s := serving(t, "vllm", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: vllm}\nspec:\n  source: hf://a/b\n  engine: vllm\n"+
		"  args: [--dtype, float32, --enforce-eager, --max-model-len, \"512\", --max-num-seqs, \"8\", --kv-cache-memory-bytes, \"33554432\"]\n"+
		"  env: {TORCHDYNAMO_DISABLE: \"1\", VLLM_TARGET_DEVICE: cpu}\n  resources: {memory: 1500Mi}\n  deadlines: {drain: 5s}\n",
		folder, func(service map[string]any) {
			annotations := at[map[string]any](service, "spec", "template", "metadata", "annotations")
			annotations["autoscaling.knative.dev/window"] = "6s"
			annotations["autoscaling.knative.dev/scale-to-zero-pod-retention-period"] = "0s"
			spec := at[map[string]any](service, "spec", "template", "spec")
			container := at[[]any](spec, "containers")[0].(map[string]any)
			env, volumes, places := at[[]any](container, "env"), at[[]any](spec, "volumes"), at[[]any](container, "volumeMounts")
			env = append(env, map[string]any{"name": "PATH", "value": filepath.Join(venv, "bin") + ":/usr/bin:/bin"}, map[string]any{"name": "VLLM_CACHE_ROOT", "value": "/opt/vllm"})
			for i, place := range sorted(mounts) {
				name := fmt.Sprintf("host-%d", i)
				volumes = append(volumes, map[string]any{"name": name, "hostPath": map[string]any{"path": mounts[place]}})
				places = append(places, map[string]any{"name": name, "mountPath": place, "readOnly": true})
			}
			// On a busy machine a pod that asks for no part of a processor gets none.
			at[map[string]any](container, "resources", "requests")["cpu"] = "500m"
			container["env"], spec["volumes"], container["volumeMounts"] = env, volumes, places
		}, "--image", "vllm=dev.local/hello:test")
	s.startLoader()

	client := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("none"), option.WithHTTPClient(s.http),
		option.WithMaxRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	chat, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: "vllm", MaxTokens: openai.Int(8), Temperature: openai.Float(0), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is thaw?")},
	})
	if err != nil {
		out, _ := s.try("", "logs", "-l", knative.ModelLabel+"="+s.name, "-c", "model", "--tail", "60")
		t.Fatalf("%v\n%s", err, out)
	}
	if chat.Usage.CompletionTokens != 8 || len(chat.Choices) != 1 {
		t.Errorf("%+v", chat)
	}
	_, text := s.ask("GET", "/timeline", "")
	t.Logf("cold chat after %v; %s", time.Since(began).Round(10*time.Millisecond), text)
	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: "vllm", MaxTokens: openai.Int(8), Temperature: openai.Float(0), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is thaw?")},
	})
	said := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			said += c.Delta.Content
		}
	}
	if err := stream.Err(); err != nil || said != chat.Choices[0].Message.Content {
		t.Errorf("warm stream: %v %q, was %q", err, said, chat.Choices[0].Message.Content)
	}
	if n := s.pod(".status.containerStatuses[?(@.name==\"model\")].restartCount"); n != "0" {
		t.Errorf("it took %s starts more: %s\n%s", n, s.pod(".status.containerStatuses[?(@.name==\"model\")].lastState"),
			s.kubectl("", "logs", s.pod(".metadata.name"), "-c", "model", "--previous", "--tail", "40"))
	}
	if out := s.kubectl("", "logs", s.pod(".metadata.name"), "-c", "model"); strings.Contains(out, "is not taken over") {
		t.Errorf("what the image knows did not reach its engine:\n%s", out)
	}
	uid := s.pod(".metadata.uid")
	if len(podProcesses(uid)) < 2 {
		t.Errorf("few processes are seen in the pod: %v", podProcesses(uid))
	}
	idle := time.Now()
	s.eventually("zero replicas", func() (bool, string) {
		out := s.kubectl("", "get", "deployment", "-l", knative.ModelLabel+"="+s.name, "-o", "jsonpath={.items[0].spec.replicas}")
		return out == "0", out
	})
	s.eventually("no process of the pod", func() (bool, string) {
		left := podProcesses(uid)
		return len(left) == 0, fmt.Sprint(left)
	})
	t.Logf("nothing of it %v after the last request", time.Since(idle).Round(time.Second))
	if left, err := filepath.Glob("/dev/shm/*"); err != nil ||
		slices.ContainsFunc(left, func(p string) bool { return strings.Contains(p, uid) }) {
		t.Errorf("%v %v", left, err)
	}
	if _, err := os.Stat(filepath.Join("/var/lib/kubelet/pods", uid)); !errors.Is(err, os.ErrNotExist) {
		s.eventually("its folders gone", func() (bool, string) {
			_, err := os.Stat(filepath.Join("/var/lib/kubelet/pods", uid))
			return errors.Is(err, os.ErrNotExist), fmt.Sprint(err)
		})
	}
}

func sorted(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
