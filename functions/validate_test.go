package functions

import (
	"strings"
	"testing"
	"time"
)

func validModel() *Model {
	m := NewModel()
	m.Metadata.Name = "tiny"
	m.Spec.Engine = EngineEmber
	m.Spec.Source = "./tiny"
	return m
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name     string
		edit     func(*Model)
		path     string // "" when nothing is wrong
		wantText string
	}{
		{"the shipped one", func(*Model) {}, "", ""},
		{"azure", func(m *Model) { m.Spec.Source = "az://acct/models/llama" }, "", ""},
		{"command without weights", func(m *Model) {
			m.Spec.Engine, m.Spec.Source, m.Spec.Args = EngineCommand, "", []string{"srv", "{port}"}
		}, "", ""},
		{"never idle", func(m *Model) { m.Spec.Scale.Idle = 0 }, "", ""},
		{"version", func(m *Model) { m.APIVersion = "v1" }, "apiVersion", "thaw.dev/v1"},
		{"kind", func(m *Model) { m.Kind = "Pod" }, "kind", "Model"},
		{"no name", func(m *Model) { m.Metadata.Name = "" }, "metadata.name", "needed"},
		{"name", func(m *Model) { m.Metadata.Name = "Tiny_1" }, "metadata.name", "DNS label"},
		{"reserved", func(m *Model) { m.Metadata.Name = "auto" }, "metadata.name", "reserved"},
		{"team", func(m *Model) { m.Metadata.Namespace = "a/b" }, "metadata.namespace", "DNS label"},
		{"label", func(m *Model) { m.Metadata.Labels = map[string]string{"a": "\x1b[31m"} }, "metadata.labels", "printable"},
		{"no engine", func(m *Model) { m.Spec.Engine = "" }, "spec.engine", "one of ember"},
		{"engine", func(m *Model) { m.Spec.Engine = "vlm" }, "spec.engine", "did you mean vllm"},
		{"no source", func(m *Model) { m.Spec.Source = "" }, "spec.source", "needed"},
		{"http", func(m *Model) { m.Spec.Source = "http://x/y" }, "spec.source", "https"},
		{"scheme", func(m *Model) { m.Spec.Source = "ftp://x/y" }, "spec.source", "cannot read ftp"},
		{"sas", func(m *Model) { m.Spec.Source = "https://a.blob.core.windows.net/c/p?sig=1" }, "spec.source", "environment"},
		{"s3a", func(m *Model) { m.Spec.Source = "s3a://bucket/x" }, "spec.source", "did you mean s3://bucket/x"},
		{"file", func(m *Model) { m.Spec.Source = "file://x" }, "spec.source", "absolute"},
		{"escape", func(m *Model) { m.Spec.Source = "a\x1bb" }, "spec.source", "control"},
		{"files", func(m *Model) { m.Spec.Files = []string{"*.py", "custom/*.py", "[a-c]?.bin", "vocab.pkl"} }, "", ""},
		{"files absolute", func(m *Model) { m.Spec.Files = []string{"*.py", "/etc/passwd"} }, "spec.files[1]", "absolute"},
		{"files above", func(m *Model) { m.Spec.Files = []string{"a/../../b"} }, "spec.files[0]", "leaves the source's folder"},
		{"files dot", func(m *Model) { m.Spec.Files = []string{"./a.py"} }, "spec.files[0]", "leaves the source's folder"},
		{"files empty", func(m *Model) { m.Spec.Files = []string{""} }, "spec.files[0]", "names nothing"},
		{"files empty part", func(m *Model) { m.Spec.Files = []string{"a//b"} }, "spec.files[0]", "empty part"},
		{"files syntax", func(m *Model) { m.Spec.Files = []string{"a[b.py"} }, "spec.files[0]", "a [ has no ]"},
		{"files deep", func(m *Model) { m.Spec.Files = []string{"**/*.py"} }, "spec.files[0]", "name each folder"},
		{"files hidden", func(m *Model) { m.Spec.Files = []string{".git/*"} }, "spec.files[0]", "hidden"},
		{"files thaw", func(m *Model) { m.Spec.Files = []string{"_thaw/cache/*"} }, "spec.files[0]", "thaw's own"},
		{"files backslash", func(m *Model) { m.Spec.Files = []string{`a\b`} }, "spec.files[0]", "backslash"},
		{"files URL", func(m *Model) { m.Spec.Files = []string{"az://a/b"} }, "spec.files[0]", "URL"},
		{"files control", func(m *Model) { m.Spec.Files = []string{"a\nb"} }, "spec.files[0]", "control"},
		{"files long", func(m *Model) { m.Spec.Files = []string{strings.Repeat("a", 300)} }, "spec.files[0]", "longer"},
		{"files many", func(m *Model) { m.Spec.Files = make([]string, 65) }, "spec.files", "at most 64"},
		{"files without source", func(m *Model) {
			m.Spec.Engine, m.Spec.Source, m.Spec.Args, m.Spec.Files = EngineCommand, "", []string{"srv", "{port}"}, []string{"*.py"}
		}, "spec.files", "no source"},
		{"adapter files", func(m *Model) {
			m.Spec.Adapters = []Adapter{{Name: "p", Source: "./p", Files: []string{"../x"}}}
		}, "spec.adapters[0].files[0]", "leaves"},
		{"command argv", func(m *Model) { m.Spec.Engine = EngineCommand }, "spec.args", "argv"},
		{"command model", func(m *Model) {
			m.Spec.Engine, m.Spec.Source, m.Spec.Args = EngineCommand, "", []string{"srv", "{model}", "{port}"}
		}, "spec.source", "{model}"},
		{"folder", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Folder = EngineCommand, []string{"srv", "{port}"}, "srv/"
		}, "spec.folder", "no absolute path"},
		{"folder of ember", func(m *Model) { m.Spec.Folder = "/srv" }, "spec.folder", "command"},
		{"health", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Health = EngineCommand, []string{"srv", "{port}"}, "health"
		}, "spec.health", "no path"},
		{"serves", func(m *Model) { m.Spec.Serves = []Endpoint{ServesRerank, ServesChat} }, "", ""},
		{"serves misspelt", func(m *Model) { m.Spec.Serves = []Endpoint{"chat", "embedings"} }, "spec.serves[1]", "did you mean embeddings?"},
		{"serves twice", func(m *Model) { m.Spec.Serves = []Endpoint{"chat", "chat"} }, "spec.serves[1]", "once"},
		{"probe of ember", func(m *Model) { m.Spec.Probe.None = true }, "spec.probe", "command"},
		{"probe", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Probe = EngineCommand, []string{"srv", "{port}"}, Probe{Path: "/v1/ocr", Body: map[string]any{"image": "x"}}
		}, "", ""},
		{"no probe", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Probe = EngineCommand, []string{"srv", "{port}"}, Probe{None: true}
		}, "", ""},
		{"probe without a path", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Probe = EngineCommand, []string{"srv", "{port}"}, Probe{Body: map[string]any{"a": 1}}
		}, "spec.probe.path", "/v1/rerank"},
		{"probe at no path", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Probe = EngineCommand, []string{"srv", "{port}"}, Probe{Path: "v1", Body: map[string]any{"a": 1}}
		}, "spec.probe.path", "no path"},
		{"probe without a body", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Probe = EngineCommand, []string{"srv", "{port}"}, Probe{Path: "/v1"}
		}, "spec.probe.body", "probe: none"},
		{"health of ember", func(m *Model) { m.Spec.Health = "/h" }, "spec.health", "command"},
		{"args", func(m *Model) { m.Spec.Args = []string{"-a", "b\x00"} }, "spec.args[1]", "NUL"},
		{"name of Ollama", func(m *Model) { m.Metadata.Name = "Qwen2.5:32B" }, "metadata.name", "such as qwen2-5-32b: 1 to 63 lower-case letters"},
		{"name too long", func(m *Model) { m.Metadata.Name = strings.Repeat("a", 64) }, "metadata.name", "it has 64 characters"},
		{"args of a shell", func(m *Model) { m.Spec.Engine, m.Spec.Args = EngineVLLM, []string{"vllm", "serve", "x"} }, "spec.args[0]", "args are its flags"},
		{"args without hyphens", func(m *Model) { m.Spec.Engine, m.Spec.Args = EngineVLLM, []string{"max-model-len=64"} }, "spec.args[0]", "no flag of vllm"},
		{"args with a dash", func(m *Model) { m.Spec.Args = []string{"--max-model-len=64", "—token-delay=1s"} }, "spec.args[1]", "a dash that is no hyphen"},
		{"args reserved", func(m *Model) { m.Spec.Args = []string{"--max-model-len=64", "--port", "9000"} }, "spec.args[1]", "--port is set by thaw"},
		{"args reserved with a value", func(m *Model) { m.Spec.Engine, m.Spec.Args = EngineVLLM, []string{"--served_model_name=x"} }, "spec.args[0]", "--served-model-name is set by thaw"},
		{"args of another engine", func(m *Model) { m.Spec.Args = []string{"--uds", "x"} }, "", ""},
		{"command with a port of a shell", func(m *Model) { m.Spec.Engine, m.Spec.Args = EngineCommand, []string{"srv", "--port=${port}"} }, "spec.args[1]", "one pair of braces, and no $"},
		{"command without a port", func(m *Model) { m.Spec.Engine, m.Spec.Args = EngineCommand, []string{"srv", "--port", "9000"} }, "spec.args", "{port} is in neither"},
		{"command with its port in env", func(m *Model) {
			m.Spec.Engine, m.Spec.Args, m.Spec.Env = EngineCommand, []string{"srv"}, map[string]string{"PORT": "{port}"}
		}, "", ""},
		{"command with its key in args", func(m *Model) {
			m.Spec.Engine, m.Spec.Args = EngineCommand, []string{"srv", "{port}", "{key}"}
		}, "spec.args[2]", "put it into env"},
		{"command with a port in two pairs of braces", func(m *Model) {
			m.Spec.Engine, m.Spec.Args = EngineCommand, []string{"srv", "{{port}}"}
		}, "spec.args[1]", "one pair"},
		{"model in env", func(m *Model) {
			m.Spec.Engine, m.Spec.Source, m.Spec.Args, m.Spec.Env = EngineCommand, "", []string{"srv", "{port}"}, map[string]string{"M": "{model}"}
		}, "spec.source", "{model}"},
		{"env", func(m *Model) { m.Spec.Env = map[string]string{"A=B": "1"} }, "spec.env", "environment variable"},
		{"env value", func(m *Model) { m.Spec.Env = map[string]string{"A": "\x00"} }, "spec.env.A", "NUL"},
		{"adapter name", func(m *Model) { m.Spec.Adapters = []Adapter{{Name: "P", Source: "./p"}} }, "spec.adapters[0].name", "DNS"},
		{"adapter twice", func(m *Model) {
			m.Spec.Adapters = []Adapter{{Name: "p", Source: "./p"}, {Name: "p", Source: "./q"}}
		}, "spec.adapters[1].name", "spec.adapters[0]"},
		{"adapter source", func(m *Model) { m.Spec.Adapters = []Adapter{{Name: "p"}} }, "spec.adapters[0].source", "needed"},
		{"adapter rank", func(m *Model) { m.Spec.Adapters = []Adapter{{Name: "p", Source: "p", Rank: -1}} }, "spec.adapters[0].rank", "range"},
		{"gpus", func(m *Model) { m.Spec.Resources.GPUs = -1 }, "spec.resources.gpus", "GPUs"},
		{"gpu memory", func(m *Model) { m.Spec.Resources.GPUMemory = 1 << 30 }, "spec.resources.gpuMemory", "no GPU"},
		{"memory without a unit", func(m *Model) { m.Spec.Resources.Memory = 16 }, "spec.resources.memory", "did you mean 16Gi?"},
		{"a flag and its value in one", func(m *Model) { m.Spec.Args = []string{"--max-model-len 4096"} }, "spec.args[0]", "[--max-model-len, 4096]"},
		{"memory", func(m *Model) { m.Spec.Resources.Memory = -1 }, "spec.resources.memory", "size"},
		{"processors", func(m *Model) { m.Spec.Resources.CPU = -1 }, "spec.resources.cpu", "processors"},
		{"min", func(m *Model) { m.Spec.Scale.Min = 2 }, "spec.scale.min", "more than max 1"},
		{"max", func(m *Model) { m.Spec.Scale.Max = 0 }, "spec.scale.max", "range"},
		{"target", func(m *Model) { m.Spec.Scale.Target = 0 }, "spec.scale.target", "range"},
		{"queue", func(m *Model) { m.Spec.Queue.Requests = 0 }, "spec.queue.requests", "range"},
		{"queue bytes", func(m *Model) { m.Spec.Queue.Bytes = 0 }, "spec.queue.bytes", "more than 0"},
		{"wait", func(m *Model) { m.Spec.Queue.Wait = 0 }, "spec.queue.wait", "bound"},
		{"hang", func(m *Model) { m.Spec.Deadlines.Hang = 0 }, "spec.deadlines.hang", "bound"},
		{"cache", func(m *Model) { m.Spec.Cache.Exact = &ExactCache{TTL: -1} }, "spec.cache.exact.ttl", "such as 10m"},
		{"price", func(m *Model) { m.Spec.Price.Output = -1 }, "spec.price.output", "0 or more"},
		{"drain", func(m *Model) { m.Spec.Deadlines.Drain = -1 }, "spec.deadlines.drain", "bound"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := validModel()
			tt.edit(m)
			checkProblems(t, Validate(m), tt.path, tt.wantText)
		})
	}
}

func TestValidateTeam(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Team)
		path string
	}{
		{"good", func(*Team) {}, ""},
		{"own namespace", func(m *Team) { m.Metadata.Namespace = "ml" }, ""},
		{"namespace", func(m *Team) { m.Metadata.Namespace = "x" }, "metadata.namespace"},
		{"name", func(m *Team) { m.Metadata.Name = "a b" }, "metadata.name"},
		{"gpus", func(m *Team) { m.Spec.GPUs = TeamGPUs{Guaranteed: 3, Max: 2} }, "spec.gpus.guaranteed"},
		{"limit", func(m *Team) { m.Spec.Limits.Concurrent = -1 }, "spec.limits.concurrent"},
		{"held", func(m *Team) { m.Spec.Limits.HeldRequests = -1 }, "spec.limits.heldRequests"},
		{"priority", func(m *Team) { m.Spec.Priority.Max = "normal" }, ""},
		{"unknown priority", func(m *Team) { m.Spec.Priority.Max = "lowest" }, "spec.priority.max"},
		{"data", func(m *Team) { m.Spec.Data = "publik" }, "spec.data"},
		{"money", func(m *Team) { m.Spec.Limits.SpendPerDay = -0.5 }, "spec.limits.spendPerDay"},
		{"store", func(m *Team) { m.Spec.Limits.StoreBytes = -1 }, "spec.limits.storeBytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			team := &Team{APIVersion: APIVersion, Kind: KindTeam, Metadata: Metadata{Name: "ml"}}
			tt.edit(team)
			got := ValidateTeam(team)
			if tt.path == "" && len(got) != 0 || tt.path != "" && (len(got) != 1 || got[0].Path != tt.path) {
				t.Fatalf("got %v, want %q", got, tt.path)
			}
		})
	}
}

func TestSetDefaultsIsWhatAFileGets(t *testing.T) {
	m := &Model{Metadata: Metadata{Name: "tiny"}, Spec: ModelSpec{Engine: EngineEmber, Source: "./tiny"}}
	m.SetDefaults()
	if want := validModel(); m.Spec.Scale != want.Spec.Scale || m.Spec.Queue != want.Spec.Queue || m.Spec.Deadlines != want.Spec.Deadlines {
		t.Fatalf("got %+v, want %+v", m.Spec, want.Spec)
	}
	if m.Spec.Scale.Idle.Std() != 5*time.Minute || m.Metadata.Namespace != DefaultTeam {
		t.Fatalf("got %+v", m)
	}
	if p := Validate(m); len(p) != 0 {
		t.Fatal(p)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"min", "max", "target", "idle", "firstToken"}
	for word, want := range map[string]string{"mx": "max", "mni": "min", "targets": "target", "firsttoken": "firstToken", "zzzzzz": "", "fi": "firstToken"} {
		got := ""
		if n := Nearest(word, names, 1); len(n) > 0 {
			got = n[0]
		}
		if got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Nearest(strings.Repeat("a", 1<<20), names, 3); got != nil {
		t.Error(got)
	}
}
