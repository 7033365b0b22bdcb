package catalog

import (
	"strings"
	"testing"
)

// TestForeignKeys: a key of another system's file is refused with what a model file has in its
// place, and a text in place of a list or of keys with what to write.
func TestForeignKeys(t *testing.T) {
	for line, want := range map[string]string{
		"ttl: 300":                         "spec.ttl: unknown key (did you mean scale: {idle: 5m}?)",
		"keep_alive: 5m":                   "(did you mean scale: {idle: 5m}?)",
		"gpu: 1":                           "(did you mean resources: {gpus: N}?)",
		"cmd: a":                           "(its program and arguments are engine: command",
		"image: a/b:c":                     "--image ENGINE=IMAGE names it",
		"aliases: [gpt-4]":                 "a Router gives it others",
		"loras: []":                        "(did you mean adapters? Each is {name: NAME, source: …})",
		"context: 8192":                    "an engine's own options go into args",
		"tensor-parallel-size: 2":          "an engine's own options go into args",
		"timeout: 10m":                     "deadlines: {start: 10m",
		"concurrency: 4":                   "scale: {target: N}",
		"nodeSelector: {a: b}":             "(did you mean pod: {nodeSelector: {…}}?)",
		"affinity: {}":                     "deploy/docs/operations.md",
		"envFrom: []":                      "thaw deploy --to knative --dry-run -o yaml prints the Knative Service",
		"pod: {dnsConfig: {}}":             "spec.pod.dnsConfig: unknown key (thaw deploy --to knative --dry-run -o yaml",
		"pod: {labels: {a: b}}":            "(did you mean metadata: {labels: {…}}?",
		"annotations: {a: b}":              "(did you mean pod: {annotations: {…}}?)",
		"resources: {claims: []}":          "GPUs of dynamic resource allocation cannot be asked for",
		"shmSize: 8Gi":                     "engines have /dev/shm",
		"resources: {nodes: 2}":            "a replica runs on one node",
		"imagePullPolicy: Always":          "latest is pulled anew",
		"terminationGracePeriodSeconds: 9": "deadlines: {drain: 30s}",
		"volumes: []":                      "weights come from source",
		"hf_token: x":                      "credentials come from the environment",
		"secrets: [x]":                     "credentials come from the environment",
		"revision: main":                   "hf://ORG/REPO@REVISION",
		"resources: {vram: 1}":             "spec.resources.vram: unknown key (did you mean resources: {gpuMemory: 20Gi}?)",
		"resources: {nvidia.com/gpu: 1}":   "(did you mean resources: {gpus: N}?)",
		"resources: {limits: {}}":          "gpus, memory and cpu stand in resources themselves",
		"resources: {gpu: 1}":              "spec.resources.gpu: unknown key (did you mean gpus?)",
		"args: --max-model-len 8192":       `(did you mean ["--max-model-len", "8192"]?)`,
		`files: "*.py"`:                    `(did you mean ["*.py"]?)`,
		"serves: chat":                     `(did you mean ["chat"]?)`,
		"adapters: {a: ./x}":               "(each of its items begins with -)",
		"adapters: [./x]":                  "(its keys are files, name, rank, source)",
		"scale: 3":                         "(its keys are idle, max, min, target)",
		"cache: true":                      "(its keys are ",
		"env: {A: b}\n  port: 8000":        "(thaw chooses the port: write {port} in args",
		"adapters: [{name: a, sauce: x}]":  "adapters[0].sauce: unknown key (did you mean source?)",
	} {
		if _, err := Decode("f.yaml", []byte(tiny+"  "+line+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", line, err, want)
		}
	}
	if _, err := Decode("f.yaml", []byte(strings.Replace(tiny, "metadata: {name: tiny}", "metadata: m", 1))); err == nil ||
		!strings.Contains(err.Error(), "(its keys are labels, name, namespace)") {
		t.Error(err)
	}
}

// TestForeignKeysOfKinds: the same for keys in Compositions and Teams.
func TestForeignKeysOfKinds(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Composition\nmetadata: {name: c}\nspec: {models: [a]}\n":          "spec.models: unknown key (did you mean members?)",
		"kind: Composition\nmetadata: {name: c}\nspec: {judge: a}\n":             "spec.judge: unknown key (did you mean coordinator?)",
		"kind: Composition\nmetadata: {name: c}\nspec: {members: [{name: a}]}\n": "spec.members[0]: keys and values where text is wanted (the text alone, such as its name)",
		"kind: Team\nmetadata: {name: t}\nspec: {limits: {rpm: 5}}\n":            "(did you mean limits: {requestsPerMinute: N}?)",
		"kind: Team\nmetadata: {name: t}\nspec: {keys: [a]}\n":                   "thaw keys create --team NAME",
		"kind: Team\nmetadata: {name: t}\nspec: {requestsPerMinute: 5}\n":        "spec.requestsPerMinute: unknown key (it belongs below limits: indent it by two blanks more)",
	} {
		if _, err := Decode("f.yaml", []byte("apiVersion: thaw.dev/v1\n"+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}
