package functions

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// KindComposition is the kind of a function that asks several functions and answers once.
const KindComposition = "Composition"

// Pattern is how a Composition asks its members.
type Pattern string

// The patterns: an ensemble asks all at once, a debate in rounds of critique, a maestro lets
// the coordinator choose among agents, a graph decomposes the request into subtasks.
const (
	PatternEnsemble Pattern = "ensemble"
	PatternDebate   Pattern = "debate"
	PatternMaestro  Pattern = "maestro"
	PatternGraph    Pattern = "graph"
)

// Patterns in the order they are listed to people.
var Patterns = []Pattern{PatternEnsemble, PatternDebate, PatternMaestro, PatternGraph}

// Show is what a client sees of the calls to members.
type Show string

// What is shown: comments on the stream, the members' answers as reasoning content, or
// nothing.
const (
	ShowProgress Show = "progress"
	ShowSteps    Show = "steps"
	ShowNone     Show = "none"
)

// Shows in the order they are listed to people.
var Shows = []Show{ShowProgress, ShowSteps, ShowNone}

// MaxCompositionDepth bounds the Compositions and Remotes that one request goes through.
const MaxCompositionDepth = 3

// Composition is one composition file: a function that asks several functions.
type Composition struct {
	Head
	Spec CompositionSpec `json:"spec"`
}

// CompositionSpec is the spec of a composition file. Names are NAME, NAME:ADAPTER or
// TEAM/NAME of functions of any kind. Quorum is how many answers of members are enough, 0
// more than half: beyond Patience (0: no bound) it does without those that are still cold.
// Rounds are the revisions of a debate.
type CompositionSpec struct {
	Pattern     Pattern           `json:"pattern"`
	Members     Members           `json:"members"`
	Coordinator string            `json:"coordinator"`
	Rounds      int               `json:"rounds,omitempty"`
	Quorum      int               `json:"quorum,omitempty"`
	Patience    Duration          `json:"patience,omitempty"`
	Budget      CompositionBudget `json:"budget,omitzero"`
	Show        Show              `json:"show,omitempty"`
}

// Members are the members of a Composition: a list, or of a maestro the agents by what they
// are for.
type Members struct {
	List []string `json:"-"`
	Agents
}

// Agents are the members of a maestro; "" is an agent that it does not have.
type Agents struct {
	Research  string `json:"research,omitempty"`
	Reasoning string `json:"reasoning,omitempty"`
	Creative  string `json:"creative,omitempty"`
	Code      string `json:"code,omitempty"`
	Critic    string `json:"critic,omitempty"`
}

// MarshalJSON writes the list, or the agents where there is none.
func (m Members) MarshalJSON() ([]byte, error) {
	if m.List != nil {
		return json.Marshal(m.List)
	}
	return json.Marshal(m.Agents)
}

// UnmarshalJSON reads either form.
func (m *Members) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("[")) {
		return json.Unmarshal(b, &m.List)
	}
	return json.Unmarshal(b, &m.Agents)
}

// ByRole returns the agents that there are.
func (a Agents) ByRole() map[string]string { return maps.Collect(a.byRole) }

// byRole yields the agents that there are, in the order of the file's keys.
func (a Agents) byRole(yield func(role, member string) bool) {
	for _, x := range [...][2]string{
		{"research", a.Research}, {"reasoning", a.Reasoning}, {"creative", a.Creative}, {"code", a.Code}, {"critic", a.Critic},
	} {
		if x[1] != "" && !yield(x[0], x[1]) {
			return
		}
	}
}

// CompositionBudget bounds one request to a Composition; 0 is no bound. Cost is in the
// currency of the installation.
type CompositionBudget struct {
	Calls      int      `json:"calls,omitempty"`
	ColdStarts int      `json:"coldStarts,omitempty"`
	Tokens     int      `json:"tokens,omitempty"`
	Cost       float64  `json:"cost,omitempty"`
	Time       Duration `json:"time,omitempty"`
}

// NewComposition is an empty Composition with every default set.
func NewComposition() *Composition {
	return &Composition{APIVersion: APIVersion, Kind: KindComposition, Metadata: Metadata{Namespace: DefaultTeam}, Spec: CompositionSpec{
		Budget: CompositionBudget{Calls: 24, Time: Duration(10 * time.Minute)}, Show: ShowProgress,
	}}
}

// Defaults of what only some patterns have.
const (
	defaultRounds   = 2
	defaultPatience = Duration(20 * time.Second)
)

// SetDefaults sets the defaults that depend on the pattern.
func (s *CompositionSpec) SetDefaults() {
	s.Show = cmp.Or(s.Show, ShowProgress)
	if s.Rounds == 0 && s.Pattern == PatternDebate {
		s.Rounds = defaultRounds
	}
	if s.Patience == 0 && s.Quorum > 0 { // who names a quorum does not want to wait for all
		s.Patience = defaultPatience
	}
}

// Answers is how many members of a list must answer.
func (s *CompositionSpec) Answers() int {
	if s.Quorum > 0 {
		return s.Quorum
	}
	return len(s.Members.List)/2 + 1
}

// CompositionPart is one function that a Composition names, and where.
type CompositionPart struct{ Path, Target string }

// Parts lists the functions that the Composition names, the coordinator last.
func (s *CompositionSpec) Parts() (parts []CompositionPart) {
	for i, m := range s.Members.List {
		parts = append(parts, CompositionPart{fmt.Sprintf("spec.members[%d]", i), m})
	}
	for role, member := range s.Members.byRole {
		parts = append(parts, CompositionPart{"spec.members." + role, member})
	}
	if s.Coordinator != "" {
		parts = append(parts, CompositionPart{"spec.coordinator", s.Coordinator})
	}
	return parts
}
