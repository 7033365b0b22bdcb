package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// vllmWakes are the results of cold requests to a real vLLM.
type vllmWakes struct {
	Rounds int                       `json:"rounds"`
	Ways   map[string]report.Summary `json:"seconds"`
	Ratio  map[string]float64        `json:"p50_ratio"` // divided by Knative's
	All    map[string][]float64      `json:"each_seconds"`
	Spans  map[string][]string       `json:"timelines,omitempty"` // of starts by thaw
}

// host lists the folders of this machine that a pod with vLLM mounts: no image of the
// tests contains vLLM.
type host struct {
	venv, model string            // folders on the machine
	mounts      map[string]string // from path in the pod to folder on the machine
}

// vllmHost finds vLLM and copies the model's files to where loaders, and pods without a
// loader, read them. It skips the test if there is no vLLM.
func vllmHost(b *bench) host {
	program, model := os.Getenv("THAW_ENGINE_VLLM"), os.Getenv("THAW_VLLM_MODEL")
	if program == "" || model == "" {
		b.Skip(`THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set: eval "$(.ci/components)" sets them`)
	}
	b.patch(b.T, "namespace", "", b.ns, map[string]any{"metadata": map[string]any{"labels": map[string]string{"thaw.dev/pod-policy": "off"}}}) // its pods mount other folders
	h := host{venv: filepath.Dir(filepath.Dir(program)), model: b.TempDir()}
	files, err := os.ReadDir(model)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(model, f.Name()))
		if err != nil {
			b.Fatal(err)
		}
		b.blobs.Put(b.ns+"/vllm/"+f.Name(), data)
		// Pods run as uid 65532 and read world-readable files.
		if err := os.WriteFile(filepath.Join(h.model, f.Name()), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	python := filepath.Join(h.venv, "bin", "python")
	real, err := filepath.EvalSymlinks(python)
	if err != nil {
		b.Fatal(err)
	}
	// These files are in thaw's vLLM image as well, see deploy/images.
	found := b.TempDir()
	ask := exec.Command(python, filepath.Join("..", "..", "..", "deploy", "images", "modelinfos.py"), "LlamaForCausalLM")
	ask.Env = append(os.Environ(), "VLLM_TARGET_DEVICE=cpu", "VLLM_CACHE_ROOT="+found)
	if out, err := ask.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	h.mounts = map[string]string{h.venv: h.venv, "/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/bin": "/usr/bin", "/etc/ssl": "/etc/ssl", "/opt/vllm": found}
	if tree := filepath.Dir(filepath.Dir(real)); tree != "/usr" {
		h.mounts[tree] = tree
	}
	return h
}

// into adds mounts of the host's folders and of more to the container of a rendered
// Service, and sets environment variables.
func (h host) into(doc map[string]any, more, env map[string]string) (container map[string]any) {
	spec := doc["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	container = spec["containers"].([]any)[0].(map[string]any)
	volumes, _ := spec["volumes"].([]any)
	places, _ := container["volumeMounts"].([]any)
	vars, _ := container["env"].([]any)
	all := maps.Clone(h.mounts)
	maps.Copy(all, more)
	for i, place := range slices.Sorted(maps.Keys(all)) {
		name := fmt.Sprintf("host-%d", i)
		volumes = append(volumes, map[string]any{"name": name, "hostPath": map[string]any{"path": all[place]}})
		places = append(places, map[string]any{"name": name, "mountPath": place, "readOnly": true})
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		vars = append(vars, map[string]any{"name": k, "value": env[k]})
	}
	spec["volumes"], container["volumeMounts"], container["env"] = volumes, places, vars
	return container
}

// shimmed is the environment of a pod with thaw's shim.
func (h host) shimmed() map[string]string {
	return map[string]string{"PATH": filepath.Join(h.venv, "bin") + ":/usr/bin:/bin", "VLLM_CACHE_ROOT": "/opt/vllm"}
}

// alone is the environment of a pod with the shim but without the node's warm host.
func (h host) alone() map[string]string {
	env := h.shimmed()
	env["THAW_WARM"] = "false"
	return env
}

// served turns a rendered Service into one that a vLLM user writes: vllm serve, no shim,
// the checkpoint in a folder of the node. The engine's settings are those that thaw
// sets, including a single process.
func (h host) served(doc map[string]any, name string, args []string) {
	spec := doc["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	delete(spec, "initContainers")
	spec["volumes"] = []any{map[string]any{"name": "scratch", "emptyDir": map[string]any{}}}
	container := spec["containers"].([]any)[0].(map[string]any)
	delete(container, "args")
	delete(container, "env")
	container["volumeMounts"] = []any{map[string]any{"name": "scratch", "mountPath": "/tmp"}}
	command := []any{filepath.Join(h.venv, "bin", "python"), filepath.Join(h.venv, "bin", "vllm"), "serve", "/model", "--served-model-name", name,
		"--host", "0.0.0.0", "--port", "8080", "--distributed-executor-backend", "uni"}
	for _, a := range args {
		command = append(command, a)
	}
	container["command"] = command
	container["readinessProbe"] = map[string]any{"httpGet": map[string]any{"path": "/health", "port": 8080}, "periodSeconds": 1}
	h.into(doc, map[string]string{"/model": h.model}, map[string]string{
		"PATH": filepath.Join(h.venv, "bin") + ":/usr/bin:/bin", "HOME": "/tmp", "TORCHDYNAMO_DISABLE": "1", "VLLM_TARGET_DEVICE": "cpu",
		"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
	})
}

// vllmWay is one of the compared deployments of the same vLLM.
type vllmWay struct {
	name, service string
	ingress       string
	goal          float64 // bound of its median divided by Knative's; 0: none
}

// benchVLLM measures the time from zero to the first token of a real vLLM in a pod. No
// other pod starts or ends during a measured start.
func benchVLLM(b *bench) {
	h := vllmHost(b)
	args := []string{"--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "33554432"}
	listed := ""
	for i, a := range args {
		if i > 0 {
			listed += ", "
		}
		listed += fmt.Sprintf("%q", a)
	}
	file := func(name string) string {
		return b.model(name, "source: "+azuretest.Location(b.ns+"/vllm"), "engine: vllm", "args: ["+listed+"]", "env: {VLLM_TARGET_DEVICE: cpu}",
			"scale: {idle: 2s}", "resources: {memory: 1500Mi}", "deadlines: {drain: 5s}")
	}
	// Programs are mounted from the machine, so any image will do.
	const images = "vllm=dev.local/hello:test"
	ways := []vllmWay{
		{"thaw's classes, plain start", "vllm", b.gateway, 0.75},
		{"Knative's, vllm serve as a user deploys it", "vllm-knative", b.theirs, 0},
		{"Knative's, the same pod as thaw's, with its shim", "vllm-shim", b.theirs, 0},
		{"thaw's classes, warm start", "vllm-warm", b.gateway, 0.2},
	}
	const plain, knatives, warm = 0, 1, 3
	b.lend(h)
	for i, way := range ways {
		doc := b.rendered(file(way.service), "--image", images)
		switch i {
		case plain:
			h.into(doc, nil, h.alone())
			b.post(doc, way.service)
		case warm:
			h.into(doc, nil, h.shimmed())
			b.post(doc, way.service)
		case knatives:
			h.served(doc, way.service, args)
			b.knatives(doc, way.service, nil)
		default:
			h.into(doc, nil, h.alone())
			b.knatives(doc, way.service, nil)
		}
	}
	v := &vllmWakes{Rounds: max(1, *benchStarts/5), Ways: map[string]report.Summary{}, Ratio: map[string]float64{},
		All: map[string][]float64{}, Spans: map[string][]string{}}
	// The first start of each is not counted: it fills the page cache and the node's store.
	for i := range v.Rounds + 1 {
		for k := range ways {
			way := ways[(i+k)%len(ways)]
			for _, w := range ways {
				b.empty(b.revision(w.service))
			}
			b.calm()
			began := time.Now()
			a := b.must(way.name, b.at(client, way.ingress, way.service, chat(way.service, 8, true)))
			first := a.first.Sub(began).Seconds()
			b.Logf("round %d, %s: first token after %.2f s, the last of 8 after %.2f s", i, way.name, first, a.took.Seconds())
			if i > 0 {
				v.All[way.name] = append(v.All[way.name], first)
			}
			if way.service == ways[knatives].service {
				continue // pods without the shim have no timeline
			}
			_, t := b.shim(way.service)
			line := t.Start + " " + t.StartNote
			for _, p := range t.Phases {
				line += fmt.Sprintf("; %s %.2f+%.2f", p.Phase, p.Start, p.Duration)
			}
			b.Logf("  %s", line)
			if i > 0 {
				v.Spans[way.name] = append(v.Spans[way.name], line)
			}
		}
	}
	t := &report.Table{Head: []string{fmt.Sprintf("zero to the first token of a real vLLM, %d starts each", v.Rounds), "p50", "worst", "p50 to vllm serve under Knative's"}}
	for _, way := range ways {
		v.Ways[way.name] = report.Summarize(v.All[way.name])
	}
	for _, way := range ways {
		s := v.Ways[way.name]
		v.Ratio[way.name] = s.P50 / v.Ways[ways[knatives].name].P50
		t.Add(way.name, report.Millis(s.P50), report.Millis(s.Max), ratio(v.Ratio[way.name]))
		if way.goal > 0 {
			b.into.Goals.Add(v.Ratio[way.name] <= way.goal, "zero to the first token of a real vLLM, p50 of "+way.name+" to Knative's",
				fmt.Sprintf("at most %.2fx", way.goal), ratio(v.Ratio[way.name]))
		}
	}
	b.into.VLLM = v
	b.into.parts = append(b.into.parts, report.Part{Heading: "Zero to the first token of a real vLLM in a pod", Table: t})
}
