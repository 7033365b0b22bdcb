package functions

import (
	"reflect"
	"slices"
)

// Kinds of documents beside models and teams.
const (
	KindRouter = "Router"
	KindRemote = "Remote"
)

// AutoRouter is the name of the Router that "model": "auto" means. A team without one
// of its own uses that of the default team.
const AutoRouter = "auto"

// DataClass says how far the data of a request may travel. The zero value is unset.
type DataClass string

// The classes, from the least to the most confined.
const (
	DataPublic   DataClass = "public"
	DataInternal DataClass = "internal"
	DataSecret   DataClass = "secret"
)

// DataClasses in ascending order.
var DataClasses = []DataClass{DataPublic, DataInternal, DataSecret}

// Rank orders classes: public 0, internal 1, secret 2. A class that is unset or unknown
// ranks as secret, so that a mistake confines data.
func (c DataClass) Rank() int {
	if i := slices.Index(DataClasses, c); i >= 0 {
		return i
	}
	return len(DataClasses) - 1
}

// Router is one router file: a function that chooses a function.
type Router struct {
	Head
	Spec RouterSpec `json:"spec"`
}

// NewRouter is an empty Router with every default set.
func NewRouter() *Router {
	return &Router{APIVersion: APIVersion, Kind: KindRouter, Metadata: Metadata{Namespace: DefaultTeam}, Spec: RouterSpec{Cold: ColdWait}}
}

// RouterSpec is the spec of a router file. Rules are tried in order; the last has no
// condition. Data is the class of what comes to this Router; unset: the team's.
type RouterSpec struct {
	Rules     []Rule      `json:"rules"`
	Intents   Intents     `json:"intents,omitzero"`
	Objective Objective   `json:"objective,omitzero"`
	Cold      ColdPolicy  `json:"cold,omitempty"`
	Retry     RouterRetry `json:"retry,omitzero"`
	Data      DataClass   `json:"data,omitempty"`
	Cache     Cache       `json:"cache,omitzero"`
}

// Rule names targets for the requests that match When, in order of preference. A target
// is NAME, NAME:ADAPTER or TEAM/NAME of a Model, a Remote or a Composition.
type Rule struct {
	Name string   `json:"name"`
	When When     `json:"when,omitzero"`
	To   []string `json:"to"`
}

// IsZero reports whether w always holds.
func (w When) IsZero() bool {
	headers := len(w.Header)
	w.Header = nil
	return headers == 0 && reflect.ValueOf(w).IsZero()
}

// When is the condition of a rule: everything that is set must hold. The zero value
// always holds.
type When struct {
	StructuredOutput *bool             `json:"structuredOutput,omitempty"`
	Code             *bool             `json:"code,omitempty"`
	Safety           *bool             `json:"safety,omitempty"`
	Tools            *bool             `json:"tools,omitempty"`
	Images           *bool             `json:"images,omitempty"`
	RepeatedPrefix   *bool             `json:"repeatedPrefix,omitempty"`
	Language         string            `json:"language,omitempty"` // an ISO 639-1 code, such as en
	TokensBelow      *int              `json:"tokensBelow,omitempty"`
	TokensAbove      *int              `json:"tokensAbove,omitempty"`
	ComplexityAbove  *float64          `json:"complexityAbove,omitempty"` // 0 to 1
	ComplexityBelow  *float64          `json:"complexityBelow,omitempty"`
	Intent           string            `json:"intent,omitempty"`
	Header           map[string]string `json:"header,omitempty"` // name to exact value
}

// Intents are recognised by example utterances. Below Threshold there is no intent.
type Intents struct {
	Threshold  float64  `json:"threshold,omitempty"`
	Classifier string   `json:"classifier,omitempty"` // builtin
	List       []Intent `json:"list,omitempty"`
}

// Intent is one intent. ExamplesFrom is a file of lines {"text":…,"intent":…}, counted
// from the folder of the router file; lines of other intents are not read.
type Intent struct {
	Name         string   `json:"name"`
	Examples     []string `json:"examples,omitempty"`
	ExamplesFrom string   `json:"examplesFrom,omitempty"`

	// Loaded are the examples that were read from ExamplesFrom. Not part of the document.
	Loaded []string `json:"-"`
}

// Objective is what a candidate should meet; absent means no bound. CostPerRequest is in
// the currency of the installation.
type Objective struct {
	FirstToken     Duration `json:"firstToken,omitempty"`
	CostPerRequest float64  `json:"costPerRequest,omitempty"`
}

// ColdPolicy is what a Router does where no candidate meets the objective.
type ColdPolicy string

// The policies: ColdWait takes the first eligible candidate, ColdOther the one that
// answers soonest, ColdHedge that one too and prewarms the first.
const (
	ColdWait  ColdPolicy = "wait"
	ColdOther ColdPolicy = "other"
	ColdHedge ColdPolicy = "hedge"
)

// ColdPolicies in the order they are listed to people.
var ColdPolicies = []ColdPolicy{ColdWait, ColdOther, ColdHedge}

// RouterRetry: with Escalate the next candidate is tried after a failure before the
// first byte.
type RouterRetry struct {
	Escalate bool `json:"escalate,omitempty"`
}

// Cache turns response caches on, of a Router or a Model.
type Cache struct {
	Exact *ExactCache `json:"exact,omitempty"`
}

// ExactCache answers a request that repeats an earlier one byte for byte in everything
// that changes an answer. Also names what is cached beyond the default: tools, images, n.
type ExactCache struct {
	TTL            Duration `json:"ttl"`
	Scope          string   `json:"scope,omitempty"` // team (default) or key
	AnyTemperature bool     `json:"anyTemperature,omitempty"`
	Also           []string `json:"also,omitempty"`
}

// Price is in the currency of the installation per million tokens.
type Price struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}
