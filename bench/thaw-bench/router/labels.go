package router

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/activator/router"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const chatPath = "/v1/chat/completions"

// newRouter returns the Router that the labels are checked with: a rule for each label.
func newRouter() (*router.Router, error) {
	yes, half := true, 0.5
	return router.Compile(&functions.Router{Metadata: functions.Metadata{Namespace: functions.DefaultTeam, Name: functions.AutoRouter},
		Spec: functions.RouterSpec{
			Rules: []functions.Rule{
				{Name: Extraction, When: functions.When{StructuredOutput: &yes}, To: []string{"small"}},
				{Name: Code, When: functions.When{Code: &yes}, To: []string{"coder"}},
				{Name: Reasoning, When: functions.When{ComplexityAbove: &half}, To: []string{"large"}},
				{Name: General, To: []string{"general"}},
			},
		}})
}

// chatBody is the body of a chat request with one message.
func chatBody(text string) ([]byte, error) {
	literal, err := json.Marshal(text)
	return append(append([]byte(`{"model":"auto","messages":[{"role":"user","content":`), literal...), "}]}"...), err
}

func decide(r *router.Router, body []byte) (functions.RouteRecord, error) {
	env, err := openai.Peek(body)
	if err != nil {
		return functions.RouteRecord{}, err
	}
	return decideAmongReady(r, &env, body), nil
}

// decideAmongReady decides among targets that are ready.
func decideAmongReady(r *router.Router, env *openai.Envelope, body []byte) functions.RouteRecord {
	return r.Decide(router.Input{Features: r.Features(env, body, chatPath)}, func(string) functions.RouteCandidate {
		return functions.RouteCandidate{Kind: functions.KindModel, State: functions.Ready.Word(), ExpectedMS: -1, Cost: -1}
	}, func() []byte { return router.Text(env, body, chatPath) })
}

// Share counts the prompts of one source and label, and to which rules they went.
type Share struct {
	Source string         `json:"source"`
	From   string         `json:"repository"`
	Held   bool           `json:"held_out"`
	Label  string         `json:"label"`
	All    int            `json:"prompts"`
	Right  int            `json:"right"`
	Rules  map[string]int `json:"rules"`
}

// count counts a prompt that went to a rule.
func (s *Share) count(rule string) {
	s.All++
	s.Rules[rule]++
	if rule == s.Label {
		s.Right++
	}
}

// wrong lists the other rules, with how many prompts went there.
func (s *Share) wrong() string {
	var list []string
	for _, rule := range Labels {
		if n := s.Rules[rule]; n > 0 && rule != s.Label {
			list = append(list, fmt.Sprintf("%s %d", rule, n))
		}
	}
	return strings.Join(list, ", ")
}

// Check routes every prompt.
func Check(prompts []Prompt) ([]Share, error) {
	r, err := newRouter()
	if err != nil {
		return nil, err
	}
	var list []Share
	at := map[string]int{}
	for _, p := range prompts {
		body, err := chatBody(p.Text)
		if err != nil {
			return nil, err
		}
		rec, err := decide(r, body)
		if err != nil {
			return nil, err
		}
		key := p.Source.Name + p.Label
		k, ok := at[key]
		if !ok {
			k = len(list)
			at[key] = k
			list = append(list, Share{Source: p.Source.Name, From: p.Source.Repository, Held: p.Source.Held, Label: p.Label,
				Rules: map[string]int{}})
		}
		list[k].count(rec.Rule)
	}
	return list, nil
}
