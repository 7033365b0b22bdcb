package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// writeFile is a file of a test.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const fewRequests = "gen:models=6,requests=200,hours=0.5,teams=2"

func TestSimulate(t *testing.T) {
	file := writeFile(t, "fleet.yaml", "nodes: [{gpus: 2}]")
	out, errs, exit := runCLI(t, Programs{}, nil, "simulate", "--fleet", file, "--trace", fewRequests, "--policy", "lru,gdsf", "-o", "json")
	if exit != 0 {
		t.Fatal(errs)
	}
	var got struct {
		Items []struct {
			Policy    string   `json:"policy"`
			GPUs      int      `json:"gpus"`
			Requests  int64    `json:"requests"`
			Cold      *int64   `json:"cold"`
			ColdShare *float64 `json:"cold_share"`
			TTFT      struct {
				P50, P90, P99, Max *float64
			} `json:"ttft_seconds"`
			Hours struct {
				Busy, Idle, Loading, Wasted *float64
			} `json:"gpu_hours"`
			Evictions *int64           `json:"evictions"`
			Teams     []map[string]any `json:"teams"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err, out)
	}
	var words []string
	for _, it := range got.Items {
		words = append(words, it.Policy)
		if it.GPUs != 2 || it.Requests < 100 || it.Cold == nil || it.ColdShare == nil || it.TTFT.P99 == nil || it.TTFT.Max == nil ||
			it.Hours.Wasted == nil || it.Evictions == nil || len(it.Teams) != 2 {
			t.Errorf("%+v", it)
		}
	}
	// What several are compared with comes by itself.
	if strings.Join(words, " ") != "lru gdsf clairvoyant" {
		t.Error(words)
	}
	if strings.Contains(errs, "\x1b") || !strings.Contains(errs, "about 200 requests in 30 min for 6 functions; the models are made up") {
		t.Error(errs)
	}
	again, _, _ := runCLI(t, Programs{}, nil, "simulate", "--fleet", file, "--trace", fewRequests, "--policy", "lru,gdsf", "-o", "json",
		"--parallel", "1")
	if again != out {
		t.Error("the same seed, another result")
	}
	other, _, _ := runCLI(t, Programs{}, nil, "simulate", "--fleet", file, "--trace", fewRequests, "--policy", "lru,gdsf", "-o", "json",
		"--seed", "2")
	if other == out {
		t.Error("another seed, the same result")
	}
}

func TestSimulateTableAndPage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	out, errs, exit := runCLI(t, Programs{}, nil, "simulate", "--example", "--trace", fewRequests, "--policy", "lru", "--gpus", "1..3",
		"--p99", "1m", "--html", page, "-o", "wide")
	if exit != 0 {
		t.Fatal(errs)
	}
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], "POLICY") || !strings.HasPrefix(lines[3], "lru") || !strings.Contains(out, "TEAM") ||
		!strings.Contains(out, "within 60 s") {
		t.Error(out)
	}
	b, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(b), "How many do I need") ||
		!strings.Contains(string(b),
			"thaw simulate --example --trace gen:models=6,requests=200,hours=0.5,teams=2 --policy lru --gpus 1..3 --p99 1m0s --seed 1") {
		t.Error(err, len(b))
	}
}

func TestSimulateFunctions(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml":    "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: small}\nspec: {source: 'https://example.invalid/small', engine: vllm, resources: {gpus: 1, gpuMemory: 8Gi}}\n",
		"huge.yaml": "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: huge}\nspec: {source: 'https://example.invalid/huge', engine: vllm, resources: {gpus: 16}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := writeFile(t, "access.log", `time=2026-11-21T10:00:00Z level=INFO msg=serving
time=2026-11-21T10:00:05Z level=INFO msg=request id=a code=200 model=default/small team=default took=1s prompt_tokens=5 completion_tokens=9
time=2026-11-21T10:00:07Z level=INFO msg=request id=b code=200 model=default/huge team=default took=1s prompt_tokens=5 completion_tokens=9
`)
	file := writeFile(t, "fleet.yaml", "nodes: [{gpus: 2}]")
	out, errs, exit := runCLI(t, Programs{}, nil, "simulate", "--fleet", file, "--functions", dir, "--trace", log)
	if exit != 0 {
		t.Fatal(errs)
	}
	// One that no node can hold is told, and the rest runs.
	if !strings.Contains(errs, "default/huge fits no node: no node has that many GPUs") || !strings.Contains(out, "100.00%") {
		t.Error(out, errs)
	}
}

func TestSimulateBadInput(t *testing.T) {
	file := writeFile(t, "fleet.yaml", "nodes: [{gpus: 2}]")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"),
		[]byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: a}\nspec: {source: ./x, engine: ember}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "a.yaml"), []byte("kind: Modl\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	moon := writeFile(t, "moon.jsonl", `{"timestamp": 0, "input_length": 1, "output_length": 1}`+"\n"+`{"timestamp": 1, "input_length": 1}`+"\n")
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "--fleet is missing"},
		{"--fleet " + file, "--trace is missing"},
		{"--fleet " + file + " --trace gen: --policy lfru", `"lfru" is no policy; did you mean lfu? (lru, lfu, gdsf, next-use, clairvoyant, furthest)`},
		{"--fleet " + file + " --trace gen: --gpus 9..3", "want such as 4..64"},
		{"--fleet " + file + " --trace gen: --gpus 3..9 --p99 0s", "--p99 wants a time"},
		{"--fleet " + file + " --trace gen: -o picture", "table, json or yaml"},
		{"--fleet " + file + " --trace gen:modles=3", "did you mean models?"},
		{"--fleet " + file + " --trace gen: --models 0", "--models: 1 to 100000"},
		{"--fleet " + file + " --trace " + moon, moon + ":2: input_length or output_length is missing"},
		{"--fleet " + file + " --trace " + moon + " --format mooncak", "did you mean mooncake?"},
		{"--fleet " + file + " --trace " + file + ".none", "no such file"},
		{"--fleet " + file + " --functions " + dir + " --trace gen:models=3", "are no models here: default/m1, default/m2, default/m3; --map says"},
		{"--fleet " + file + " --functions " + dir + " --trace gen:models=3 --map rnk", "did you mean rank?"},
		{"--fleet " + file + " --functions " + bad + " --trace gen:models=3", `a.yaml:1:1: kind: "Modl" is no kind thaw knows`},
		{"--fleet " + file + " --functions " + t.TempDir() + " --trace gen:models=3", "there is no model in"},
		{"--fleet " + file + " --functions " + dir + "/none --trace gen:models=3", "no such file"},
		{"--fleet " + writeFile(t, "f.yaml", "nodes:\n- count: 3\n") + " --trace gen:models=3", "f.yaml:1:1: nodes: no node has a GPU"},
		{"--fleet " + writeFile(t, "f.yaml", "nodes:\n- gpu: 3\n") + " --trace gen:models=3", "f.yaml:2:3: nodes[0].gpu: unknown key (did you mean gpus?)"},
		{"--fleet " + dir + "/none --trace gen:models=3", "no such file"},
	} {
		out, errs, exit := runCLI(t, Programs{}, nil, append([]string{"simulate"}, strings.Fields(c.args)...)...)
		if exit != kit.ExitUsage || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%s: exit %d\n%s\nwant %s", c.args, exit, errs, c.want)
		}
	}
}

func TestExampleFleet(t *testing.T) {
	out, errs, exit := runCLI(t, Programs{}, nil, "simulate", "--example-fleet")
	if exit != 0 || out != string(fleet.Example) {
		t.Fatal(errs)
	}
	// It is one that simulate takes.
	if _, errs, exit := runCLI(t, Programs{}, nil, "simulate", "--fleet", writeFile(t, "fleet.yaml", out), "--trace",
		"gen:models=3,requests=20,hours=0.1"); exit != 0 {
		t.Error(errs)
	}
}
