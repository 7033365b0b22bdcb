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
		"storageUris: [s3://b/p]":          "spec.storageUris: unknown key (did you mean source?)",
		"cache: {ttl: 5m}":                 "spec.cache.ttl: unknown key (it belongs below exact: indent it by two blanks more)",
		"resources: {args: [x]}":           "spec.resources.args: unknown key (it stands in spec itself: indent it by less)",
		"scale: {memory: 8Gi}":             "spec.scale.memory: unknown key (did you mean resources: {memory: 16Gi}?)",
		"health: 8080":                     "spec.health: the number 8080 where text is wanted (a path that the engine answers to GET",
		"health: {path: /x}":               "spec.health: keys and values where text is wanted (a path that the engine answers to GET",
		"health:":                          "spec.health: nothing where text is wanted (a path that the engine answers to GET",
		"resources: {gpus: all}":           `spec.resources.gpus: the text "all" where a whole number is wanted (how many whole GPUs, such as gpus: 1`,
		"resources: {gpus: [0, 1]}":        "a list where a whole number is wanted (how many whole GPUs",
		"resources: {memory: 1.5}":         `"1.5" is no size: want a number with Ki`,
		"scale: {idle: 1d}":                `"1d" is no duration: want such as 30s, 5m or 1h; a day is 24h`,
		"scale: {max: 0x10}":               "the number 0x10 where a whole number is wanted (digits alone, such as 4)",
		"env: {A: .inf}":                   `the number .inf where text is wanted (put it in quotes: ".inf")`,
		"env: {1: a}":                      "the number 1 as a key; text is wanted (put it in quotes)",
		"args:\n  - a\n   - b\n   - c":     "spec.args[0]: the text goes on over a line that begins with a dash (indent the dashes of a list alike)",
		"args: |\n  --a\n  --b":            "not YAML: non-map value is specified (the lines of a text that | begins stand deeper than its key)",
		"env: {A: b}}":                     "(a comma stands between values, and --- between documents)",
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
		`weights: ["*.gguf"]`:              `spec.weights: a list where text is wanted (one pattern, such as weights: "*Q4_K_M*")`,
		`price: {input: "1$"}`:             `spec.price.input: the text "1$" where a number is wanted (such as 0.5)`,
		"cache: {semantic: {}}":            "spec.cache.semantic: not supported yet (leave it out)",
		"adapters: [{source: ./x}]":        "spec.adapters[0].name: a name is needed (1 to 63",
		"folder:":                          "spec.folder: nothing where text is wanted (a value belongs behind the colon; a key without one is left out)",
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

// TestFilesThatAreNoModel: a file of something else is refused with how to come by a model file.
func TestFilesThatAreNoModel(t *testing.T) {
	for text, want := range map[string]string{
		"applications:\n  - import_path: a:b\n":                                "Router, Team; thaw init SOURCE writes a model file)",
		"apiVersion: thaw.dev/v1\nkind: Function\nname: default/m\n":           "thaw describe NAME says where the model file is",
		"addr: 127.0.0.1:8080\ndata: d\n":                                      "thaw serve --config FILE",
		"#!/bin/sh\nvllm serve x\n":                                            "(thaw init SOURCE writes a model file)",
		"GGUF\x00\x01":                                                         "not text in UTF-8 (models are described in YAML or JSON; thaw init SOURCE",
		"// one model\n{\"kind\": \"Model\"}\n":                                "(a comment begins with #)",
		"{\"kind\": \"Model\", // a comment\n}\n":                              "(a comment begins with #)",
		"[{\"kind\": \"Model\"}]":                                              "(its items are documents with --- between them)",
		strings.Replace(tiny, "name: tiny", "name: tiny, team: ml", 1):         "metadata.team: unknown key (the team is metadata.namespace)",
		strings.Replace(tiny, "engine: ember", "engine: \"\"\n  args: [a]", 1): "spec.engine: an engine is needed",
	} {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "is no flag of") {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	docs, err := Decode("f.yaml", []byte(tiny+"  scale: {max: 08}\n"))
	if err != nil || docs[0].Model.Spec.Scale.Max != 8 {
		t.Errorf("08: %v", err)
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
