package functions

// RouteFeatures are what a Router knows of a request. They hold no text of the prompt.
type RouteFeatures struct {
	TokenCount       int     `json:"tokenCount"` // an estimate
	Code             bool    `json:"code"`
	StructuredOutput bool    `json:"structuredOutput"`
	Safety           bool    `json:"safety"` // the request asks for a moderation verdict
	Tools            bool    `json:"tools"`
	Images           bool    `json:"images"`
	Language         string  `json:"language,omitempty"` // an ISO 639-1 code; "" unknown
	RepeatedPrefix   bool    `json:"repeatedPrefix"`
	PromptFamily     string  `json:"promptFamily,omitempty"` // hash of the beginning of the prompt, 16 hex digits
	Session          string  `json:"session,omitempty"`      // hash of thaw-session, 16 hex digits
	Complexity       float64 `json:"complexity"`             // 0 to 1; -1: not computed
	Intent           string  `json:"intent,omitempty"`
	Confidence       float64 `json:"confidence,omitempty"` // of the intent, 0 to 1
}

// RouteCandidate is a target as it was at the decision. ExpectedMS is the expected time
// to the first token in milliseconds, negative if unknown; Cost the expected cost of the
// request, negative if unknown. WhyNot is why it is not eligible, "" if it is.
type RouteCandidate struct {
	Name       string  `json:"name"`
	Kind       string  `json:"kind,omitempty"`  // of the function
	State      string  `json:"state,omitempty"` // a word of the contracts
	ExpectedMS float64 `json:"expected_ms"`
	Cost       float64 `json:"cost"`
	WhyNot     string  `json:"why_not,omitempty"`
}

// RouteStage is how a decision was reached.
type RouteStage string

// The stages: rules alone, with the complexity score, with an intent.
const (
	StageRules  RouteStage = "rules"
	StageScore  RouteStage = "score"
	StageIntent RouteStage = "intent"
)

// RouteRecord is one decision of a Router, complete: deciding again from it gives the
// same target. It holds no text of the prompt.
type RouteRecord struct {
	ID         string           `json:"id,omitempty"`     // of the request; "" in a dry run
	Parent     string           `json:"parent,omitempty"` // the request to a Composition that this one is a call of
	Time       string           `json:"time,omitempty"`
	Router     string           `json:"router"` // TEAM/NAME
	Rule       string           `json:"rule"`
	Stage      RouteStage       `json:"stage"`
	Target     string           `json:"target"` // "": no candidate is eligible
	Prewarm    string           `json:"prewarm,omitempty"`
	Cold       ColdPolicy       `json:"cold"`
	Data       DataClass        `json:"data"`
	Objective  Objective        `json:"objective,omitzero"`
	Reason     string           `json:"reason"`             // one sentence
	Currency   string           `json:"currency,omitempty"` // of costs
	Candidates []RouteCandidate `json:"candidates"`
	Features   RouteFeatures    `json:"features"`
	After      string           `json:"after,omitempty"` // the target that failed before
	Cache      string           `json:"cache,omitempty"` // exact, miss, off
	Code       int              `json:"code,omitempty"`  // status of the answer

	// Outcome is how good the answer was, 0 to 1, as its user reported; nil: not reported.
	Outcome *float64 `json:"outcome,omitempty"`
}
