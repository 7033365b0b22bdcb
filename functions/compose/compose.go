package compose

import (
	"context"
	"encoding/json/jsontext"
	"time"
)

// Pattern is how the members of a composition work together.
type Pattern string

// The patterns; the package's comment describes them.
const (
	Ensemble Pattern = "ensemble"
	Debate   Pattern = "debate"
	Maestro  Pattern = "maestro"
	Graph    Pattern = "graph"
)

// The roles of calls. A maestro's agents have the roles of Plan.Agents.
const (
	RoleMember      = "member"
	RoleCoordinator = "coordinator"
	RoleResearch    = "research"
	RoleReasoning   = "reasoning"
	RoleCreative    = "creative"
	RoleCode        = "code"
	RoleCritic      = "critic"
)

// Ask asks a member. It returns when the answer is whole or ctx has ended, and is called
// from several goroutines at once. With an error it may return what was used until then.
type Ask func(ctx context.Context, q Call) (Reply, error)

// Call is one question to one member.
type Call struct {
	Member    string         // as the file names it
	Role      string         // one of the roles above
	Round     int            // from 1; a debate's first answers are round 1, its first revisions round 2
	Step      string         // id of a graph's subtask, else ""
	Messages  []Message      // shared with other calls: not to be changed
	JSON      jsontext.Value // schema that the answer must satisfy; nil: free text
	MaxTokens int            // 0: the member's own
	Sampling  jsontext.Value // Input.Sampling, for members' answers and the synthesis
	Final     bool           // its text is the composition's answer: streamed to the client
	Next      []string       // members asked after this call, first ones first: to be loaded where room is left beside calls
	// to be called once the member is loaded and has the request; without it a cold member counts as loading until its answer
	Began func()
}

// Message is one message of a conversation.
type Message struct {
	Role    string `json:"role"` // "system", "user", "assistant" or what the client sent
	Content string `json:"content"`
}

// Reply is a member's answer.
type Reply struct {
	Text  string
	Usage Usage
	Cost  float64
	Cold  bool          // the member was loaded for this call
	Took  time.Duration // 0: measured by Run
}

// Usage is a number of tokens.
type Usage struct{ Prompt, Completion int64 }

// Input is the client's request.
type Input struct {
	Messages  []Message      // at least one; kept whole, in order, in every call
	JSON      jsontext.Value // schema of the client's response_format: of the synthesis, and of ensemble's and debate's answers
	MaxTokens int            // of the synthesis; 0: the coordinator's own
	Sampling  jsontext.Value // temperature and the like, passed on as it is
}

// Plan is a composition that [functions.ValidateComposition] has accepted.
type Plan struct {
	Pattern     Pattern
	Members     []string          // all patterns but maestro, without repeats
	Agents      map[string]string // maestro: role to member
	Coordinator string
	Rounds      int           // debate: revisions after the first answers; 0: none
	Quorum      int           // answers that are enough; 0: more than half of those asked for
	Patience    time.Duration // how long a round waits for cold members beyond the quorum; 0: no bound. Not for graph
	Budget      Budget
	Quoted      int           // bytes of all answers that one message quotes; 0: 128 KiB. Long ones are cut first
	Mark        func() string // draws 128 random bits for the marks around quotations; nil: crypto/rand
}

// Budget bounds a run; 0 is no bound.
type Budget struct {
	Calls      int
	ColdStarts int // below 0: none
	Tokens     int64
	Cost       float64
	Time       time.Duration
}

// Ready sorts the members `want` into groups: the first can be asked now beside the
// members `busy`, which have calls in flight and are not in want; a later one when those
// before it have ended. Loaded members come first. An empty first group means that a busy member must end
// first. Members that are left out are asked last. A nil Ready: all fit and are loaded.
type Ready func(busy, want []string) []Group

// Group lists members that fit beside each other.
type Group struct {
	Warm []string      // loaded
	Cold []string      // not loaded
	Wait time.Duration // forecast, from now, of the time until Cold is loaded; 0: not known
}

// Result is what a run did. It is returned with an error too, for what must be charged.
type Result struct {
	Text      string
	Streamed  bool // Text is the text of the call that was Final
	Calls     []Made
	Usage     Usage   // the sum of Calls
	Cost      float64 // the sum of Calls
	Rounds    int     // that were begun
	Agreement Agreement
	LeftOut   []LeftOut
	Prompts   string // version of the prompts
	PlanError string // why the coordinator's plan was not used: each member got the whole request; "": it was, or there is none

	AnsweredBy string // the member whose answer Text is, because the coordinator's was empty; "": none
}

// Made is a call that was made, in the order in which they began.
type Made struct {
	Member, Role, Step string
	Round              int
	Final              bool
	Usage              Usage
	Cost               float64
	Cold               bool
	Began, Took        time.Duration // Began is since the start of the run
	Err                error         // nil: it was answered
}

// Agreement tells how many of the answers were equal after normalising. The share is
// Agree / Answers.
type Agreement struct {
	Answers int  // that were compared
	Agree   int  // size of the largest set of equal answers
	Exact   bool // they are the composition's answer, without a synthesis
}

// LeftOut is an answer that was given up, or not asked for.
type LeftOut struct {
	Member, Role, Step string
	Round              int
	Reason             Reason
}

// Reason tells why an answer is missing.
type Reason string

const (
	ReasonPatience   Reason = "cold beyond patience"
	ReasonDecided    Reason = "decided without it"
	ReasonCalls      Reason = "budget: calls"
	ReasonColdStarts Reason = "budget: coldStarts"
	ReasonTokens     Reason = "budget: tokens"
	ReasonCost       Reason = "budget: cost"
	ReasonTime       Reason = "budget: time"
	ReasonCancelled  Reason = "cancelled"
)

// EventKind is what an event reports.
type EventKind string

const (
	EventRound     EventKind = "round"     // Round begins
	EventBegin     EventKind = "begin"     // a call begins
	EventEnd       EventKind = "end"       // it has ended: Text, or Err; with Reason EventLeftOut follows
	EventLeftOut   EventKind = "left_out"  // Reason
	EventPlan      EventKind = "plan"      // the coordinator's choice: Steps; with Err what was done in its place
	EventAgreement EventKind = "agreement" // Agreement
	EventReplaced  EventKind = "replaced"  // the synthesis is empty: Member's answer stands for it
	EventWait      EventKind = "wait"      // nothing begins until a call has ended, or patience has: Busy and Next
)

// Event is progress of a run.
type Event struct {
	Kind               EventKind
	Member, Role, Step string
	Round              int
	Final              bool
	Text               string // the answer, whole
	Cold               bool
	Over               bool // of EventEnd: the run asks the member no more
	Took               time.Duration
	Err                error
	Reason             Reason
	Steps              []Step
	Agreement          Agreement
	Busy               []string // members with calls in flight
	Next               []string // members asked after them, once all calls of a phase have begun: to be loaded where room is left
}

// Step is one part of a coordinator's plan.
type Step struct {
	ID     string // of a graph's subtask, else ""
	Role   string
	Member string
	Task   string
	Needs  []string // ids of subtasks
}

// Run runs the pattern. It calls on (nil: no events) from its own goroutine, one event at a
// time, and returns only after every call to ask has returned. Errors are of type *Error,
// or wrap context.Cause(ctx) if ctx ended.
func Run(ctx context.Context, p *Plan, in Input, ask Ask, ready Ready, on func(Event)) (Result, error) {
	if len(in.Messages) == 0 {
		return Result{}, &Error{Kind: BadInput, Detail: "no messages"}
	}
	r := newRun(p, in, ask, ready, on)
	if t := p.Budget.Time; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, errTime)
		defer cancel()
		r.collectUntil = r.start.Add(t / 4 * 3)
	}
	var err error
	switch p.Pattern {
	case Ensemble:
		err = r.ensemble(ctx)
	case Debate:
		err = r.debate(ctx)
	case Maestro:
		err = r.maestro(ctx)
	case Graph:
		err = r.graph(ctx)
	}
	r.result.Rounds = r.round
	return r.result, err
}
