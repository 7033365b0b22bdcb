package ember

import (
	"net/http"
)

type tokenizeRequest struct {
	Model            string    `json:"model"`
	Prompt           *string   `json:"prompt"`
	Messages         []message `json:"messages"`
	AddSpecialTokens *bool     `json:"add_special_tokens"`
	Answer           *bool     `json:"add_generation_prompt"`
	WithTokens       bool      `json:"return_token_strs"`
}

func (s *server) tokenize(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	var g tokenizeRequest
	if _, f := s.decodeNaming(w, r, &g, &g.Model); f != nil {
		return f
	}
	var ids []int
	var f *failure
	switch {
	case g.Messages != nil:
		ids, f = e.render(g.Messages, g.Answer == nil || *g.Answer)
	case g.Prompt != nil:
		ids = e.tok.Encode(*g.Prompt, g.AddSpecialTokens == nil || *g.AddSpecialTokens)
	default:
		f = invalidRequest("prompt", "missing_required_parameter", "prompt or messages is missing")
	}
	if f != nil {
		return f
	}
	a := struct {
		Count  int      `json:"count"`
		MaxLen int      `json:"max_model_len"`
		Tokens []int    `json:"tokens"`
		Texts  []string `json:"token_strs"`
	}{len(ids), e.maxLen, ids, nil}
	if a.Tokens == nil {
		a.Tokens = []int{}
	}
	if g.WithTokens {
		sp := generation{e: e}
		a.Texts = []string{}
		for _, id := range ids {
			a.Texts = append(a.Texts, sp.name(id))
		}
	}
	writeJSON(w, http.StatusOK, a)
	return nil
}

func (s *server) detokenize(e *engine, w http.ResponseWriter, r *http.Request) *failure {
	var g struct {
		Model  string `json:"model"`
		Tokens *[]int `json:"tokens"`
	}
	if _, f := s.decodeNaming(w, r, &g, &g.Model); f != nil {
		return f
	}
	if g.Tokens == nil {
		return invalidRequest("tokens", "missing_required_parameter", "tokens is missing")
	}
	for _, id := range *g.Tokens {
		if id < 0 || id >= e.tok.Size() {
			return invalidRequest("tokens", "invalid_value", "token id %d is outside the vocabulary of %d", id, e.tok.Size())
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{e.tok.Decode(*g.Tokens, true)})
	return nil
}
