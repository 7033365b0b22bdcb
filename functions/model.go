package functions

import (
	"path"
	"slices"
	"strings"
)

// APIVersion is the only version of the files.
const APIVersion = "thaw.dev/v1"

// Kinds of documents.
const (
	KindModel = "Model"
	KindTeam  = "Team"
)

// Metadata names a document.
type Metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Model is one model file: weights, the engine that serves them, and how it scales.
type Model struct {
	Head
	Spec ModelSpec `json:"spec"`
}

// Head is what the documents of all kinds begin with.
type Head struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`

	// Dir is the folder of the file the document was read from; relative sources
	// count from it. Origin is that file and line, for messages. Neither is
	// part of the document.
	Dir    string `json:"-"`
	Origin string `json:"-"`
}

// FullName is TEAM/NAME.
func (h *Head) FullName() Name { return Name{Team: h.Metadata.Namespace, Name: h.Metadata.Name} }

// Engine is the program that serves a model.
type Engine string

// The supported engines.
const (
	EngineEmber    Engine = "ember"
	EngineVLLM     Engine = "vllm"
	EngineSGLang   Engine = "sglang"
	EngineLlamaCpp Engine = "llamacpp"
	EngineCommand  Engine = "command"
)

// Engines in the order they are listed to people.
var Engines = []Engine{EngineEmber, EngineVLLM, EngineSGLang, EngineLlamaCpp, EngineCommand}

// ModelSpec is the spec of a model file. The defaults are those of Defaults. Files
// are patterns of files of the source that are staged beside those that always
// are (CheckPattern); Exclude leaves files or folders out, and Weights chooses the set
// of weights where the source holds several.
type ModelSpec struct {
	Source    string            `json:"source,omitempty"`
	Files     []string          `json:"files,omitempty"`
	Exclude   []string          `json:"exclude,omitempty"`
	Weights   string            `json:"weights,omitempty"`
	Engine    Engine            `json:"engine,omitempty"`
	Args      []string          `json:"args,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Folder    string            `json:"folder,omitempty"` // that a command engine runs in; "": that of the model file
	Health    string            `json:"health,omitempty"`
	Serves    []Endpoint        `json:"serves,omitempty"`
	Probe     Probe             `json:"probe,omitzero"`
	Adapters  []Adapter         `json:"adapters,omitempty"`
	Resources Resources         `json:"resources"`
	Scale     Scale             `json:"scale"`
	Queue     Queue             `json:"queue"`
	Deadlines Deadlines         `json:"deadlines"`
	Pod       Pod               `json:"pod,omitzero"`
	Cache     Cache             `json:"cache,omitzero"`
	Price     Price             `json:"price,omitzero"`
}

// RelativeArg is the index of the first argument of a command engine that counts from the
// folder it runs in; -1 for none.
func (s *ModelSpec) RelativeArg() int {
	return slices.IndexFunc(s.Args, func(arg string) bool {
		return s.Engine == EngineCommand && (strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, "../"))
	})
}

// Adapter is a LoRA adapter of a model, requested as NAME:ADAPTER. Files are, as
// in ModelSpec, patterns of files that are staged beside those that always are.
type Adapter struct {
	Name   string   `json:"name"`
	Source string   `json:"source"`
	Rank   int      `json:"rank,omitempty"`
	Files  []string `json:"files,omitempty"`
}

// Resources are what a replica reserves. GPUMemory is per GPU, Memory the host's. CPU is what
// is set aside for it where nodes promise processors, as Kubernetes does; agents do
// not, and it takes what it gets there. Pods is 1 where replicas are pods, of which
// a node holds so many; it is not a key of the files.
type Resources struct {
	GPUs      int   `json:"gpus"`
	GPUMemory Bytes `json:"gpuMemory"`
	Memory    Bytes `json:"memory"`
	CPU       CPU   `json:"cpu,omitempty"`
	Pods      int   `json:"-"`
}

// OnGPUs is the part of r that is on GPUs.
func (r Resources) OnGPUs() Resources {
	return Resources{GPUs: r.GPUs, GPUMemory: r.GPUMemory}
}

// OffGPUs is the part of r that is on the host.
func (r Resources) OffGPUs() Resources {
	r.GPUs, r.GPUMemory = 0, 0
	return r
}

// Scale bounds the replicas of a model. Target is the number of concurrent
// requests one replica is meant to serve; Idle is how long a replica lives
// after its last request's end (or after it became ready).
type Scale struct {
	Min    int      `json:"min"`
	Max    int      `json:"max"`
	Target int      `json:"target"`
	Idle   Duration `json:"idle"`
}

// Queue bounds the requests held for a model: how many, how many bytes of
// bodies, how long each.
type Queue struct {
	Requests int      `json:"requests"`
	Bytes    Bytes    `json:"bytes"`
	Wait     Duration `json:"wait"`
}

// Deadlines bound the phases of a replica's life.
type Deadlines struct {
	Stage      Duration `json:"stage"`
	Start      Duration `json:"start"`
	FirstToken Duration `json:"firstToken"`
	Hang       Duration `json:"hang"`
	Drain      Duration `json:"drain"`
}

// Team is one team file: a namespace, its GPUs and limits. Zero means no limit.
type Team struct {
	Head
	Spec TeamSpec `json:"spec"`
}

// FullName is the team's name twice: a team is a namespace itself.
func (t *Team) FullName() Name { return Name{Team: t.Metadata.Name, Name: t.Metadata.Name} }

// TeamSpec is the spec of a team file. Data is the class of the data of the team's
// requests where a Router names none; unset: internal.
type TeamSpec struct {
	GPUs     TeamGPUs     `json:"gpus"`
	Limits   Limits       `json:"limits"`
	Data     DataClass    `json:"data,omitempty"`
	Priority TeamPriority `json:"priority,omitzero"`
}

// TeamPriority bounds the priority of a team's requests; unset: high.
type TeamPriority struct {
	Max Priority `json:"max,omitempty"`
}

// TeamGPUs are the GPUs that a team is guaranteed, and the most it may hold.
type TeamGPUs struct {
	Guaranteed int `json:"guaranteed"`
	Max        int `json:"max"`
}

// Limits of a team; absent or 0 means no limit. SpendPerDay is in the currency of the
// installation; a day ends at midnight UTC.
type Limits struct {
	Concurrent        int     `json:"concurrent,omitempty"`
	HeldRequests      int     `json:"heldRequests,omitempty"`
	RequestsPerMinute int     `json:"requestsPerMinute,omitempty"`
	TokensPerMinute   int     `json:"tokensPerMinute,omitempty"`
	ColdStartsPerHour int     `json:"coldStartsPerHour,omitempty"`
	GPUSecondsPerDay  int     `json:"gpuSecondsPerDay,omitempty"`
	StoreBytes        Bytes   `json:"storeBytes,omitempty"`
	SpendPerDay       float64 `json:"spendPerDay,omitempty"`
}

// What stands before a pattern in StagedFiles that is not one of files to stage.
const (
	ExcludePrefix = "!"
	WeightsPrefix = "="
)

// AnyGGUF is the pattern of the weights of llamacpp where none is chosen.
const AnyGGUF = "*.[gG][gG][uU][fF]"

// WeightsPattern is the pattern of the one set of weights that is loaded: the chosen one,
// or the file that the source names, or for llamacpp any. "" for all there are.
func (s *ModelSpec) WeightsPattern() string {
	switch base := path.Base(s.Source); {
	case s.Weights != "":
		return s.Weights
	case strings.EqualFold(path.Ext(base), ".gguf"):
		return literalPattern.Replace(base)
	case s.Engine == EngineLlamaCpp:
		return AnyGGUF
	}
	return ""
}

// literalPattern writes a name as a pattern that matches it alone.
var literalPattern = strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")

// StagedFiles are the patterns of the files that are staged: Files beside the usual ones,
// or, for a command engine without, every file down to eight folders (its program knows
// what they are, and thaw loads none of them); then what is left out, and the set of weights.
func (s *ModelSpec) StagedFiles() []string {
	patterns := slices.Clone(s.Files)
	if s.Engine == EngineCommand && len(s.Files) == 0 {
		for i := range 8 {
			patterns = append(patterns, strings.Repeat("*/", i)+"*")
		}
	}
	for _, p := range s.Exclude {
		patterns = append(patterns, ExcludePrefix+p)
	}
	if w := s.WeightsPattern(); w != "" {
		patterns = append(patterns, WeightsPrefix+w)
	}
	return patterns
}

// Priority is a word for the order of a team's requests. "" is unset: normal.
type Priority string

const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// Priorities from the first to be served to the last.
var Priorities = []Priority{PriorityHigh, PriorityNormal, PriorityLow}

// Above reports whether requests of priority p are served before those of other.
func (p Priority) Above(other Priority) bool {
	return slices.Index(Priorities, p) < slices.Index(Priorities, other)
}
