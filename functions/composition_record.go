package functions

// CompositionRecord is what a Composition did for one request. It holds no text.
type CompositionRecord struct {
	ID          string                `json:"id,omitempty"` // of the request
	Time        string                `json:"time,omitempty"`
	Composition string                `json:"composition"` // TEAM/NAME
	Pattern     Pattern               `json:"pattern"`
	Calls       []CompositionCall     `json:"calls"` // in the order in which they began
	LeftOut     []CompositionLeftOut  `json:"left_out,omitempty"`
	Agreement   *CompositionAgreement `json:"agreement,omitempty"`   // nil: answers were not compared
	PlanError   string                `json:"plan_error,omitempty"`  // why each member got the whole request in place of the coordinator's plan
	AnsweredBy  string                `json:"answered_by,omitempty"` // the member whose answer is the Composition's, because the coordinator's was empty
	Rounds      int                   `json:"rounds,omitempty"`
	Prompts     string                `json:"prompts,omitempty"` // version of the prompts
	Cost        float64               `json:"cost,omitempty"`
	Seconds     float64               `json:"seconds,omitempty"` // until the end of the answer
	Code        int                   `json:"code,omitempty"`    // status of the answer; 0: the request is under way
	Error       string                `json:"error,omitempty"`
}

// CompositionCall is a call to a member or to the coordinator. Start is since the beginning
// of the request; Duration is 0 while the call is under way.
type CompositionCall struct {
	ID         string  `json:"id,omitempty"` // of its request
	Member     string  `json:"member"`
	Role       string  `json:"role"`
	Round      int     `json:"round,omitempty"`
	Step       string  `json:"step,omitempty"`  // of a graph
	Final      bool    `json:"final,omitempty"` // it wrote the answer
	Start      float64 `json:"start"`
	Duration   float64 `json:"duration"`
	Cold       bool    `json:"cold,omitempty"`
	ColdStart  string  `json:"cold_start,omitempty"` // its id
	Prompt     int64   `json:"prompt_tokens"`
	Completion int64   `json:"completion_tokens"`
	Estimated  bool    `json:"estimated,omitempty"` // the member named no usage
	Cost       float64 `json:"cost,omitempty"`
	Error      string  `json:"error,omitempty"`
}

// CompositionLeftOut is an answer that the Composition did without.
type CompositionLeftOut struct {
	Member string `json:"member"`
	Role   string `json:"role"`
	Round  int    `json:"round,omitempty"`
	Step   string `json:"step,omitempty"`
	Reason string `json:"reason"`
}

// CompositionAgreement is how many of the answers were equal. Exact: they are the answer.
type CompositionAgreement struct {
	Answers int  `json:"answers"`
	Agree   int  `json:"agree"`
	Exact   bool `json:"exact"`
}
