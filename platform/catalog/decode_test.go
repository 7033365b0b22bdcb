package catalog

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const tiny = `apiVersion: thaw.dev/v1
kind: Model
metadata: {name: tiny}
spec:
  source: ./tiny
  engine: ember
`

func TestDecode(t *testing.T) {
	docs, err := Decode("dir/m.yaml", []byte(`# yaml-language-server: $schema=schema.json
apiVersion: thaw.dev/v1            # the only version
kind: Model
metadata: {name: big, namespace: ml, labels: {tier: "1"}}
spec:
  source: az://acct/models/big
  engine: vllm
  args: [--max-model-len, "4096"]
  env: {A: &x "1", B: *x}
  files: ["*.py", vocab/*.bin]
  adapters: [{name: pirate, source: ./pirate, rank: 16, files: ["*.py"]}]
  resources: {gpus: 2, gpuMemory: 40Gi, memory: 1.5G}
  scale: {min: 0, max: 2, target: 8, idle: 1m30s}
  queue: {requests: 10, bytes: 65536}
  pod:
    nodeSelector: {kubernetes.azure.com/agentpool: gpu}
    tolerations: [{key: sku, operator: Equal, value: gpu, effect: NoSchedule}, {operator: Exists}]
    runtimeClassName: nvidia
    imagePullSecrets: [{name: mine}]
    serviceAccountName: models
    priorityClassName: high
---
apiVersion: thaw.dev/v1
kind: Team
metadata: {name: ml}
spec: {gpus: {guaranteed: 1, max: 4}, limits: {concurrent: 3, storeBytes: 10Gi}}
---
# nothing
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != 2 {
		t.Fatalf("%d documents", len(docs))
	}
	m := docs[0].Model
	want := functions.NewModel()
	want.Metadata = functions.Metadata{Name: "big", Namespace: "ml", Labels: map[string]string{"tier": "1"}}
	want.Dir, want.Origin = "dir", "dir/m.yaml:2"
	want.Spec.Source, want.Spec.Engine = "az://acct/models/big", functions.EngineVLLM
	want.Spec.Args = []string{"--max-model-len", "4096"}
	want.Spec.Env = map[string]string{"A": "1", "B": "1"}
	want.Spec.Adapters = []functions.Adapter{{Name: "pirate", Source: "./pirate", Rank: 16, Files: []string{"*.py"}}}
	want.Spec.Files = []string{"*.py", "vocab/*.bin"}
	want.Spec.Resources = functions.Resources{GPUs: 2, GPUMemory: 40 << 30, Memory: 1.5e9}
	want.Spec.Scale.Max, want.Spec.Scale.Idle = 2, functions.Duration(90*time.Second)
	want.Spec.Queue.Requests, want.Spec.Queue.Bytes = 10, 65536
	want.Spec.Pod = functions.Pod{
		NodeSelector: map[string]string{"kubernetes.azure.com/agentpool": "gpu"}, Tolerations: []functions.Toleration{{Key: "sku", Operator: "Equal", Value: "gpu", Effect: "NoSchedule"}, {Operator: "Exists"}},
		RuntimeClassName: "nvidia", ImagePullSecrets: []functions.Reference{{Name: "mine"}}, ServiceAccountName: "models", PriorityClassName: "high",
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
	if tm := docs[1].Team; tm == nil || tm.Spec.GPUs.Max != 4 || tm.Spec.Limits.StoreBytes != 10<<30 || tm.Origin != "dir/m.yaml:23" {
		t.Errorf("got %+v", docs[1])
	}
}

func TestDecodeRefuses(t *testing.T) {
	edit := func(old, new string) string {
		if !strings.Contains(tiny, old) {
			t.Fatalf("%q is not there", old)
		}
		return strings.Replace(tiny, old, new, 1)
	}
	tests := []struct {
		name, file, want string
	}{
		{"unknown key", tiny + "  scale: {mx: 2}\n", `f.yaml:7:11: spec.scale.mx: unknown key (did you mean max?)`},
		{"unknown key at the top", tiny + "status: {}\n", `f.yaml:7:1: status: unknown key (one of apiVersion, kind, metadata, spec)`},
		{"kind with a capital", edit("kind", "Kind"), `f.yaml:2:1: Kind: unknown key (did you mean kind?)`},
		{"keys in other letters", strings.NewReplacer("apiV", "apiv", "kind", "KIND", "metadata", "Metadata", "spec", "Spec").Replace(tiny),
			"f.yaml:1:1: apiversion: unknown key (did you mean apiVersion?)\nf.yaml:2:1: KIND: unknown key (did you mean kind?)\n" +
				"f.yaml:3:1: Metadata: unknown key (did you mean metadata?)\nf.yaml:4:1: Spec: unknown key (did you mean spec?)"},
		{"keys below in other letters", strings.NewReplacer("name:", "Name:", "source", "Source").Replace(tiny),
			"f.yaml:3:12: metadata.Name: unknown key (did you mean name?)\nf.yaml:5:3: spec.Source: unknown key (did you mean source?)"},
		{"a misspelt kind", edit("kind", "knd"), `f.yaml:2:1: knd: unknown key (did you mean kind?)`},
		{"kind with a capital and another value", edit("kind: M", "Kind: m"), "f.yaml:2:1: Kind: unknown key (did you mean kind?)\n" +
			`f.yaml:2:1: kind: "model" is no kind thaw knows (did you mean Model?)`},
		{"another system's key", tiny + "  minReplicas: 1\n", `f.yaml:7:3: spec.minReplicas: unknown key (did you mean scale: {min: N}?)`},
		{"a command of llama-swap", tiny + "  cmd: \"my-server --port ${PORT}\"\n", `f.yaml:7:3: spec.cmd: unknown key (its program and arguments are engine: command with args: [PROGRAM, --port, "{port}"])`},
		{"ports of docker compose", tiny + "  ports: [\"80:80\"]\n", `spec.ports: unknown key (thaw chooses the port: write {port} in args, such as --port={port})`},
		{"a time of llama-swap", tiny + "  ttl: 300\n", `spec.ttl: unknown key (did you mean scale: {idle: 5m}?)`},
		{"a key in Python's spelling", tiny + "  min_replicas: 1\n", `spec.min_replicas: unknown key (did you mean scale: {min: N}?)`},
		{"limits of Kubernetes", tiny + "  resources: {limits: {nvidia.com/gpu: 1}}\n", `spec.resources.limits: unknown key (gpus, memory and cpu stand in resources themselves)`},
		{"LiteLLM's parameters", tiny + "  litellm_params: {model: a}\n", `spec.litellm_params: unknown key (an API that runs already is a document of its own: kind: Remote with spec.url)`},
		{"an engine with members", edit("engine: ember", "engine: {type: vllm}"), `spec.engine: keys and values where text is wanted (its name alone, such as engine: vllm;`},
		{"another engine", edit("engine: ember", "engine: ollama"), `spec.engine: "ollama" is no engine thaw knows (another server is engine: command with args: [PROGRAM, --port, "{port}"]; one that runs already is kind: Remote; or one of`},
		{"arguments in one text", tiny + "  args: --port 80\n", `spec.args: the text "--port 80" where a list is wanted (did you mean ["--port", "80"]?)`},
		{"a file of llama-swap", "models:\n  a:\n    cmd: x --port ${PORT}\n", `kind: a kind is needed (a file of llama-swap? Each model is a document here: kind: Model with engine: command`},
		{"a file of LiteLLM", "model_list:\n- model_name: a\n", `kind: a kind is needed (a file of LiteLLM? Each of model_list is a document here: kind: Remote with url, model and keyFrom, or kind: Model)`},
		{"a file of docker compose", "services: {vllm: {image: x}}\n", `kind: a kind is needed (a file of docker compose? Each engine is a document here: kind: Model; thaw init SOURCE writes a model file)`},
		{"a Modelfile", "FROM llama3\nPARAMETER temperature 1\n", `(a Modelfile of Ollama? thaw init SOURCE writes a model file; an engine's options go into args)`},
		{"KServe's kind", "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n", `kind: "InferenceService" is no kind thaw knows (thaw makes such objects itself from kind: Model; thaw init SOURCE writes a model file)`},
		{"keys of a Remote of LiteLLM", "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: a}\nspec: {api_base: x}\n", `spec.api_base: unknown key (did you mean url?)`},
		{"keys of a Router of LiteLLM", "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: a}\nspec: {fallbacks: [a]}\n", `spec.fallbacks: unknown key (a rule's to names the next ones too: to: [FIRST, SECOND])`},
		{"a list of Kubernetes", "apiVersion: v1\nkind: List\nitems: []\n", `f.yaml:2:1: kind: "List" is no kind thaw knows (write its items as documents with --- between them)`},
		{"a merge key", tiny + "  <<: {idle: 1m}\n", `f.yaml:7:3: spec: a merge key as a key; text is wanted (<< is not supported: write the keys themselves)`},
		{"env as Kubernetes has it", tiny + "  env: [{name: A, value: b}]\n", `f.yaml:7:8: spec.env: a list where keys and values are wanted (NAME: VALUE for each)`},
		{"a template", tiny + "  files: {{ .Values.files }}\n", `(a template is rendered first, such as by helm template)`},
		{"a tab", tiny + "\tenv: {}\n", `(indent with blanks, not with tabs)`},
		{"mis-cased key", tiny + "  Scale: {}\n", `f.yaml:7:3: spec.Scale: unknown key (did you mean scale?)`},
		{"duplicate key", tiny + "  engine: vllm\n", `f.yaml:7:3: spec.engine: this key is already there, on line 6`},
		{"duplicate in flow", tiny + "  scale: {max: 1, max: 2}\n", `f.yaml:7:19: spec.scale.max: this key is already there, on line 7`},
		{"text for a number", tiny + "  scale: {max: many}\n", `f.yaml:7:16: spec.scale.max: the text "many" where a whole number is wanted (digits alone, such as 4)`},
		{"quoted number", tiny + "  scale: {max: \"2\"}\n", `f.yaml:7:16: spec.scale.max: the text "2" where a whole number is wanted (without quotes)`},
		{"fraction", tiny + "  scale: {max: 1.5}\n", `f.yaml:7:16: spec.scale.max: the number 1.5 where a whole number is wanted (digits alone, such as 4)`},
		{"huge", tiny + "  scale: {max: 99999999999999999999}\n", `f.yaml:7:16: spec.scale.max: the text "99999999999999999999" where a whole number is wanted (digits alone, such as 4)`},
		{"number for text", edit("name: tiny", "name: 12"), `f.yaml:3:18: metadata.name: the number 12 where text is wanted (put it in quotes: "12")`},
		{"bool in env", tiny + "  env: {A: true}\n", `f.yaml:7:12: spec.env.A: true where text is wanted (put it in quotes: "true")`},
		{"number in args", tiny + "  args: [a, 4096]\n", `f.yaml:7:13: spec.args[1]: the number 4096 where text is wanted (put it in quotes: "4096")`},
		{"list for a mapping", tiny + "  scale: [1]\n", `f.yaml:7:10: spec.scale: a list where keys and values are wanted`},
		{"text for a list", tiny + "  args: a\n", `f.yaml:7:9: spec.args: the text "a" where a list is wanted (did you mean ["a"]?)`},
		{"braces without quotes", tiny + "  args: [a, {port}]\n", `f.yaml:7:13: spec.args[1]: keys and values where text is wanted (put text that has braces in quotes, such as "--port={port}")`},
		{"braces behind text", tiny + "  args: [a, --port={port}]\n", `f.yaml:7:20: not YAML: ',' or ']' must be specified (put text that has braces in quotes, such as "--port={port}")`},
		{"nothing for text", edit("source: ./tiny", "source:"), `f.yaml:5:10: spec.source: nothing where text is wanted`},
		{"probe misspelt", tiny + "  probe: nnoe\n", `f.yaml:7:10: spec.probe: "nnoe" is no probe; did you mean none? (auto, none, {path: /v1/…, body: {…}})`},
		{"unknown key of a probe", tiny + "  probe: {pth: /v1}\n", `f.yaml:7:11: spec.probe.pth: unknown key (did you mean path?)`},
		{"list for a probe", tiny + "  probe: [none]\n", `f.yaml:7:10: spec.probe: a list where auto, none, or a path and a body is wanted`},
		{"endpoint misspelt", tiny + "  serves: [chats]\n", `f.yaml:7:12: spec.serves[0]: "chats" is no endpoint thaw knows (did you mean chat? one of chat, completions, embeddings, rerank, score, transcriptions, speech, responses)`},
		{"unknown key of a pod", tiny + "  pod: {tolerations: [{key: sku}], hostNetwork: true}\n", `f.yaml:7:36: spec.pod.hostNetwork: unknown key (one of annotations, imagePullSecrets, nodeSelector, priorityClassName, runtimeClassName, serviceAccountName, tolerations)`},
		{"a secret that is no object", tiny + "  pod: {imagePullSecrets: [mine]}\n", `f.yaml:7:28: spec.pod.imagePullSecrets[0]: the text "mine" where keys and values are wanted`},
		{"number in a selector", tiny + "  pod: {nodeSelector: {a: 1}}\n", `f.yaml:7:27: spec.pod.nodeSelector.a: the number 1 where text is wanted (put it in quotes: "1")`},
		{"pod has its line", tiny + "  pod:\n    tolerations:\n    - {key: a}\n    - {value: b}\n", `f.yaml:10:7: spec.pod.tolerations[1].key: a key is needed`},
		{"one GPU", tiny + "  resources: {gpu: 1}\n", `f.yaml:7:15: spec.resources.gpu: unknown key (did you mean gpus?)`},
		{"processors", tiny + "  resources: {cpu: lots}\n", `f.yaml:7:20: spec.resources.cpu: "lots" is no number of processors: want such as 2, 0.5 or 500m`},
		{"size", tiny + "  resources: {memory: 64Mo}\n", `f.yaml:7:23: spec.resources.memory: "64Mo" is no size: want a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 64Mi`},
		{"duration", tiny + "  scale:\n    idle: 5\n", `f.yaml:8:11: spec.scale.idle: "5" is no duration: want such as 30s, 5m or 1h`},
		{"negative duration", tiny + "  scale: {idle: -30s}\n", `f.yaml:7:17: spec.scale.idle: "-30s" is out of range: want 0 to 2562047h, such as 30s, 5m or 1h (scale: {min: 1} keeps a replica always)`},
		{"minus one", tiny + "  scale: {idle: -1}\n", `f.yaml:7:17: spec.scale.idle: "-1" is out of range: want 0 to 2562047h, such as 30s, 5m or 1h (scale: {min: 1} keeps a replica always)`},
		{"never", tiny + "  scale: {idle: never}\n", `f.yaml:7:17: spec.scale.idle: "never" is no duration: want such as 30s, 5m or 1h (scale: {min: 1} keeps a replica always)`},
		{"a blank after the colon", tiny + "  health:/x\n", `f.yaml:7:3: not YAML: non-map value is specified (a key is followed by a colon and a blank: KEY: VALUE)`},
		{"not indented", tiny + "args: []\n", `f.yaml:7:1: args: unknown key (it belongs below spec: indent it by two blanks more)`},
		{"indented too little", tiny + "  min: 1\n", `f.yaml:7:3: spec.min: unknown key (it belongs below scale: indent it by two blanks more)`},
		{"two documents", tiny + "kind: Model\n", `f.yaml:7:1: kind: this key is already there, on line 2 (--- stands between two documents)`},
		{"backslash", tiny + "  folder: \"C:\\models\"\n", `f.yaml:7:15: not YAML: found unknown escape character 'm' (within double quotes a backslash begins an escape: use single quotes, or none)`},
		{"reserved", tiny + "  env:\n    A: @b\n", `f.yaml:8:8: not YAML: '@' is a reserved character (put the text in quotes)`},
		{"colon", tiny + "  env:\n    A: b: c\n", `f.yaml:8:8: not YAML: mapping value is not allowed in this context (put text that has a colon and a blank in quotes; an indentation may be wrong, too)`},
		{"no-break blank", tiny + "\u00a0\u00a0args: []\n", `f.yaml:7:1: not YAML: U+00A0 stands where a blank belongs (write a plain blank in its place)`},
		{"no-break blank behind a colon", tiny + "  folder:\u3000/x\n", `f.yaml:7:1: not YAML: U+3000 stands where a blank belongs (write a plain blank in its place)`},
		{"typographic quotes", tiny + "  health: “/x”\n", `f.yaml:7:3: spec.health: only a command engine has a health path of its own (leave it out)`},
		{"typographic quotes in a name", strings.Replace(tiny, "name: tiny", "name: “tiny”", 1), "f.yaml:3:12: metadata.name: \"“tiny”\" is no DNS label (the marks “ ” ‘ ’ are no quotes of YAML: write \" or ' in their place)"},
		{"Markdown", "```yaml\n" + tiny + "```\n", "f.yaml:1:1: not YAML: '`' is a reserved character (leave the lines of ``` out)"},
		{"a conflict", "<<<<<<< HEAD\n" + tiny + "=======\n" + tiny + ">>>>>>> x\n", `f.yaml:15:1: not YAML: invalid header option: ">>>>>> x" (a conflict of a merge is left in the file)`},
		{"directive", "%YAML 1.2\n---\n" + tiny, `f.yaml:1:1: not YAML: unexpected directive value. document not started (a line that begins with % is left out; other text that does is put in quotes)`},
		{"no value in env", tiny + "  env:\n    A:\n", `f.yaml:8:8: spec.env.A: nothing where text is wanted (an empty text is "")`},
		{"a list in env", tiny + "  env:\n    A: [b]\n", `f.yaml:8:8: spec.env.A: a list where text is wanted (a value is text; on Kubernetes the pod can name a Secret: pods of models in deploy/docs/operations.md)`},
		{"too long in two units", tiny + "  deadlines: {start: 9223372036854s1h}\n", `f.yaml:7:22: spec.deadlines.start: "9223372036854s1h" is out of range: want 0 to 2562047h, such as 30s, 5m or 1h`},
		{"too long by one unit", tiny + "  deadlines: {start: 2562047h99.5m}\n", `f.yaml:7:22: spec.deadlines.start: "2562047h99.5m" is out of range: want 0 to 2562047h, such as 30s, 5m or 1h`},
		{"too long", tiny + "  deadlines: {start: 9223372036854s}\n", `f.yaml:7:22: spec.deadlines.start: "9223372036854s" is out of range: want 0 to 2562047h, such as 30s, 5m or 1h`},
		{"MIG", tiny + "  resources: {nvidia.com/mig-3g.71gb: 1}\n", `f.yaml:7:15: spec.resources.nvidia.com/mig-3g.71gb: unknown key (slices of a GPU (MIG) are not supported: gpus: 1 is a whole one, and gpuMemory chooses its size)`},
		{"list for a duration", tiny + "  scale: {idle: []}\n", `f.yaml:7:17: spec.scale.idle: a list where a duration such as 30s is wanted`},
		{"validation has its line", tiny + "  scale:\n    min: 3\n", `f.yaml:8:5: spec.scale.min: min 3 is more than max 1 (raise max or lower min)`},
		{"missing has its parent's", edit("  engine: ember\n", ""), `f.yaml:4:1: spec.engine: an engine is needed (one of ember, vllm, sglang, llamacpp, command)`},
		{"no kind", edit("kind: Model\n", ""), `f.yaml:1:1: kind: a kind is needed (one of Composition, Model, Remote, Router, Team; thaw init SOURCE writes a model file)`},
		{"kind", edit("kind: Model", "kind: model"), `f.yaml:2:1: kind: "model" is no kind thaw knows (did you mean Model?)`},
		{"no version", edit("apiVersion: thaw.dev/v1\n", ""), `apiVersion: "" is no version thaw knows (write apiVersion: thaw.dev/v1)`},
		{"second document", tiny + "---\nkind: Team\nbad: 1\n", `f.yaml:9:1: bad: unknown key`},
		{"text", "hello\n", `f.yaml:1:1: the text "hello" where a document with apiVersion`},
		{"list", "- a\n", `a list where a document`},
		{"syntax", "a: [1\n", `f.yaml:1:4: not YAML: `},
		{"tabs", "a:\n\tb: 1\n", `not YAML: `},
		{"tag", tiny + "  args: [!!str 1]\n", `spec.args[0]: tags such as !!str are not supported (put text in quotes)`},
		{"merge", tiny + "  <<: {a: b}\n", `f.yaml:7:3: spec: a merge key as a key`},
		{"key that is a number", tiny + "  env: {1: a}\n", `spec.env: the number 1 as a key; text is wanted`},
		{"unknown alias", tiny + "  args: [*a]\n", `spec.args[0]: no anchor &a stands before this alias in its document`},
		{"anchor after its alias", tiny + "  args: [*a]\n  env: {A: &a x}\n", `spec.args[0]: no anchor &a stands before this alias in its document`},
		{"alias that holds itself", tiny + "  args: &a [*a]\n", `spec.args[0]: what stands at the anchor &a holds this alias of it (write`},
		{"alias that holds itself below an unknown key", "base: &a {x: [*a]}\n" + tiny + "  args: *a\n", `spec.args: keys and values where a list is`},
		{"not UTF-8", "a: \xff\n", `f.yaml: the file is not text in UTF-8`},
		{"NUL", "a: \x00\n", `f.yaml: the file is not text in UTF-8`},
		{"too large", strings.Repeat("#", MaxFile+1), `f.yaml: the file is larger than 128 KiB`},
		{"many keys", strings.Repeat("a: b\n", 20_000), `f.yaml:1001:2: more than 1000 keys or 5000 items in one document`},
		{"deep brackets", strings.Repeat("[", 100_000), `f.yaml:1:65: nested too deeply`},
		{"deep dashes", strings.Repeat("- ", 10_000), `nested too deeply`},
		{"escapes", tiny + "  \"a\\e[31m\": 1\n", `spec.a\x1b[31m: unknown key`},
		{"escaped name", edit("name: tiny", `name: "a\nb"`), `metadata.name: "a\nb" is no DNS label`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			docs, err := Decode("f.yaml", []byte(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s", err, tt.want)
			}
			if docs != nil {
				t.Error("documents beside an error")
			}
			if strings.ContainsAny(err.Error(), "\x1b\x00") {
				t.Errorf("control character in %q", err)
			}
		})
	}
}

// TestAnchorBelowARefusedKey: an alias of an anchor that stands below a refused key is what stands
// there, and is not said to lack its anchor.
func TestAnchorBelowARefusedKey(t *testing.T) {
	for _, x := range []struct{ file, refused, alias string }{
		{"base: &b {min: 1, max: 2}\n" + tiny + "  scale: *b\n", "base: unknown key (an anchor stands at a value that is used: ", ""},
		{tiny + "  bases:\n  - &b {min: 1}\n  - &c {max: x}\n  scale: *c\n", "spec.bases: unknown key", `spec.scale.max: the text "x"`},
		{tiny + "  env: {A: x}\n  env: {B: &b y}\n  args: [*b]\n", "spec.env: this key is already there", ""},
		{"base: &b {min: &c {x: *c}}\n" + tiny + "  scale: *c\n", "base: unknown key", "spec.scale.x: unknown key"},
		{"base: &b {min: 1, max: *b}\n" + tiny + "  scale: *b\n", "base: unknown key",
			"spec.scale.max: what stands at the anchor &b holds this alias of it (write the values themselves)"},
	} {
		_, err := Decode("f.yaml", []byte(x.file))
		if err == nil || !strings.Contains(err.Error(), x.refused) || !strings.Contains(err.Error(), x.alias) ||
			strings.Contains(err.Error(), "no anchor") {
			t.Errorf("%s: %v", x.file, err)
		}
	}
}

// TestAliasBomb: nine levels of ten aliases stand for a billion values.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString(tiny + "  adapters:\n")
	b.WriteString("  - &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 10; i++ {
		p, n := string(rune('0'+i-1)), string(rune('0'+i))
		b.WriteString("  - &a" + n + " [" + strings.TrimSuffix(strings.Repeat("*a"+p+",", 10), ",") + "]\n")
	}
	if _, err := Decode("f.yaml", []byte(b.String())); err == nil {
		t.Fatal("no error")
	}
	// And where the types would follow it: a list of text.
	long := tiny + "  args: [" + strings.Repeat("x,", 60_000) + "x]\n"
	if _, err := Decode("f.yaml", []byte(long)); err == nil || !strings.Contains(err.Error(), "too many values") {
		t.Fatalf("got %.200v", err)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(tiny)
	for i := range 900 {
		b.WriteString("  x" + strings.Repeat("y", i%50) + ": 1\n")
	}
	_, err := Decode("f.yaml", []byte(b.String()))
	var p Problems
	if !errors.As(err, &p) || len(p) != maxProblems {
		t.Fatalf("%d problems", len(p))
	}
}

func TestDecodeJSON(t *testing.T) {
	b := []byte("{\n\t\"apiVersion\": \"thaw.dev/v1\",\n\t\"kind\": \"Model\", \"metadata\": {\"name\": \"tiny\"},\n\t\"spec\": " +
		"{\"engine\": \"ember\", \"source\": \"a\\/b \\u00e9\", \"resources\": {\"memory\": 1024}}\n}")
	docs, err := Decode("f.json", b)
	if err != nil {
		t.Fatal(err)
	}
	if s := docs[0].Model.Spec; s.Source != "a/b é" || s.Resources.Memory != 1024 {
		t.Fatalf("%+v", s)
	}
}

// sameModel compares what a file can say.
func sameModel(a, b *functions.Model) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// The forms of probe, of which a body is any JSON, are read as they are written.
func TestProbeForms(t *testing.T) {
	for written, want := range map[string]string{
		"auto": "",
		"none": `"none"`,
		`{path: /v1/ocr, body: {image: x, pages: [1, 2.5], deep: {a: true, b: null, c: {}, d: []}}}`: `{"path":"/v1/ocr","body":{"deep":{"a":true,"b":null,"c":{},"d":[]},"image":"x","pages":[1,2.5]}}`,
	} {
		file := strings.Replace(tiny, "engine: ember", "engine: command\n  args: [srv, '{port}']\n  probe: "+written, 1)
		docs, err := Decode("f.yaml", []byte(file))
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		b, err := json.Marshal(docs[0].Model.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Probe json.RawMessage }
		if err := json.Unmarshal(b, &got); err != nil || string(got.Probe) != want {
			t.Errorf("%s: %s, want %s", written, got.Probe, want)
		}
		var spec functions.ModelSpec
		if err := json.Unmarshal(b, &spec); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(spec); string(again) != string(b) {
			t.Errorf("%s: read again %s, was %s", written, again, b)
		}
		yaml, err := EncodeYAML(docs[0].Model)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Decode("f.yaml", yaml); err != nil {
			t.Errorf("%s: %v\n%s", written, err, yaml)
		} else if b2, _ := json.Marshal(back[0].Model.Spec); string(b2) != string(b) {
			t.Errorf("%s: as YAML %s, was %s", written, b2, b)
		}
	}
}

func TestEncodeRoundTrip(t *testing.T) {
	_, err := Decode("f.yaml", []byte(tiny+`  args: ["--yes", "1", "", " a", "#b", "a: b", "multi\nline\n", "- x", "{p}", "'q'", "\"", "é☃", "null", "~", "0x10", "1e3", "*a", "&b", "!c", "%d", "@e", "|", "true"]
  env: {A: "on", "b.c": ":", "yes": "no"}
`))
	if err == nil {
		t.Fatal("b.c is no environment variable")
	}
	docs, err := Decode("f.yaml", []byte(tiny+`  args: ["--yes", "1", "", " a", "#b", "a: b", "multi\nline\n", "- x", "{p}", "'q'", "\"", "é☃", "null", "~", "0x10", "1e3", "*a", "&b", "!c", "%d", "@e", "|", "true"]
  env: {A: "on", b: ":", "yes": "no"}
`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := EncodeYAML(docs[0].Model)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode("f.yaml", b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if !sameModel(docs[0].Model, again[0].Model) {
		t.Fatalf("got %q\nwant %q\n%s", again[0].Model.Spec.Args, docs[0].Model.Spec.Args, b)
	}
}

func TestDecodeInto(t *testing.T) {
	var c struct {
		Addr   string          `json:"addr"`
		Memory functions.Bytes `json:"memory"`
		On     bool            `json:"on"`
		Hosts  []string        `json:"hosts"`
	}
	if err := DecodeInto("c.yaml", []byte("addr: :8080\nmemory: 1Gi\non: true\nhosts: [a]\n"), &c); err != nil || c.Memory != 1<<30 || !c.On ||
		c.Addr != ":8080" || c.Hosts[0] != "a" {
		t.Fatal(err, c)
	}
	for file, want := range map[string]string{
		"adr: x":           "c.yaml:1:1: adr: unknown key (did you mean addr?)",
		"on: 1":            "on: the number 1 where true or false is wanted",
		"on: true\n---\na": "one document is wanted",
	} {
		if err := DecodeInto("c.yaml", []byte(file), &c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", file, err, want)
		}
	}
	if err := DecodeInto("c.yaml", []byte("# nothing\n"), &c); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(tiny))
	f.Add([]byte(tiny + "---\napiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: ml}\n"))
	f.Add([]byte(`{"apiVersion":"thaw.dev/v1","kind":"Model","metadata":{"name":"a"},"spec":{"engine":"ember","source":"x"}}`))
	f.Add([]byte("a: &a [*a]\nb: !!binary x\n? [c]\n: |\n  d\n<<: *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := Decode("f.yaml", data)
		if err != nil {
			if docs != nil || err.Error() == "" {
				t.Fatal("documents beside an error, or an error that says nothing")
			}
			return
		}
		for _, d := range docs {
			b, err := EncodeYAML(d.Value())
			if err != nil {
				t.Fatal(err)
			}
			again, err := Decode("f.yaml", b)
			if err != nil || len(again) != 1 {
				t.Fatalf("what was decoded does not decode again: %v\n%s", err, b)
			}
			if d.Model != nil && !sameModel(d.Model, again[0].Model) {
				t.Fatalf("changed on the way: %+v\n%+v", d.Model, again[0].Model)
			}
		}
	})
}

func TestEncodeYAML(t *testing.T) {
	type inner struct {
		List  []any          `json:"list"`
		Empty []string       `json:"empty"`
		Map   map[string]any `json:"map"`
	}
	got, err := EncodeYAML(map[string]any{
		"a": inner{List: []any{"x", "5m", "64Mi", "1e3", "no", "", " a", "a ", "a: b", "a:b", "az://a/b", "- x", "\n", "a\nb", "\x1b[31m\u0085\ufeff", "é☃ 🙂", 1.5, true, nil, []any{1, []any{}}, map[string]any{"k": 1, "l": []any{2}}},
			Empty: []string{}, Map: map[string]any{}},
		"yes": "<<",
	})
	const want = `a:
  list:
  - x
  - 5m
  - 64Mi
  - "1e3"
  - "no"
  - ""
  - " a"
  - "a "
  - "a: b"
  - a:b
  - az://a/b
  - "- x"
  - "\n"
  - "a\nb"
  - "\x1b[31m\u0085\ufeff"
  - "é☃ 🙂"
  - 1.5
  - true
  - null
  - - 1
    - []
  - k: 1
    l:
    - 2
  empty: []
  map: {}
"yes": "<<"
`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	for v, want := range map[string]string{"text": "text\n", "": "\"\"\n"} {
		if got, err := EncodeYAML(v); err != nil || string(got) != want {
			t.Errorf("%q: %q %v", v, got, err)
		}
	}
}
