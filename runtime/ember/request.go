package ember

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions/jsonerror"
	"github.com/thaw-dev/thaw/runtime/ember/chat"
)

// maxBody bounds a request, as the gateway does.
const maxBody = 32 << 20

const readBound = time.Minute

// generate is the body of a completion, of a chat or not. Unknown fields are
// ignored; of duplicate fields the last counts, as in vLLM.
type generate struct {
	Model         string          `json:"model"`
	Prompt        jsontext.Value  `json:"prompt"`
	Messages      []message       `json:"messages"`
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	MinTokens     *int            `json:"min_tokens"`
	Sampling      samplingOptions `json:",embed"`
	N             *int            `json:"n"`
	BestOf        *int            `json:"best_of"`
	Stop          jsontext.Value  `json:"stop"`
	StopIDs       []int           `json:"stop_token_ids"`
	IncludeStop   bool            `json:"include_stop_str_in_output"`
	IgnoreEOS     bool            `json:"ignore_eos"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Logprobs       jsontext.Value `json:"logprobs"` // a number for completions, a boolean for chat
	TopLogprobs    *int           `json:"top_logprobs"`
	Echo           bool           `json:"echo"`
	Suffix         string         `json:"suffix"`
	ToolChoice     jsontext.Value `json:"tool_choice"`
	FunctionCall   jsontext.Value `json:"function_call"` // what tool_choice was called before
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

// samplingOptions are the sampling parameters of a request; nil: the default of the model.
type samplingOptions struct {
	Temperature *float64           `json:"temperature"`
	TopP        *float64           `json:"top_p"`
	TopK        *int               `json:"top_k"`
	MinP        *float64           `json:"min_p"`
	Presence    *float64           `json:"presence_penalty"`
	Frequency   *float64           `json:"frequency_penalty"`
	Repetition  *float64           `json:"repetition_penalty"`
	Bias        map[string]float64 `json:"logit_bias"`
	Seed        *int64             `json:"seed"`
}

type message struct {
	Role      string         `json:"role"`
	Content   jsontext.Value `json:"content"`
	ToolCalls []struct {
		Function struct {
			Name      string         `json:"name"`
			Arguments jsontext.Value `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func decodeBody(w http.ResponseWriter, r *http.Request, v any) *failure {
	if t := r.Header.Get("Content-Type"); t != "" {
		if m, _, err := mime.ParseMediaType(t); err != nil || m != "application/json" && !strings.HasSuffix(m, "+json") {
			return invalidRequest("", "unsupported_content_type", "Content-Type must be application/json, not %q", t)
		}
	}
	// Without this the deadline would end a long answer as if the client had gone.
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(readBound))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	rc.SetReadDeadline(time.Time{})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &failure{http.StatusRequestEntityTooLarge, "the body is larger than " + strconv.Itoa(maxBody) + " bytes", "invalid_request_error",
			"", "request_too_large"}
	}
	if err != nil {
		return invalidRequest("", "invalid_body", "the body could not be read: %v", err)
	}
	if err := json.Unmarshal(b, v, jsontext.AllowDuplicateNames(true)); err != nil {
		if _, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
			return invalidRequest("", "invalid_json", "the body is not JSON: %v", err)
		}
		if wrong, ok := errors.AsType[*json.SemanticError](err); ok {
			p := strings.TrimPrefix(string(wrong.JSONPointer), "/")
			return invalidRequest(p, "invalid_type", "%s", jsonerror.Describe(wrong))
		}
		return invalidRequest("", "invalid_json", "%v", err)
	}
	return nil
}

// unsupported refuses a parameter that ember does not have.
func unsupported(param, what string) *failure {
	return invalidRequest(param, "unsupported_parameter", "%s is not supported by the engine ember: leave it out", what)
}

func checkRange[T int | float64](name string, v *T, lo, hi T) *failure {
	if v != nil && !(*v >= lo && *v <= hi) {
		if lo == hi {
			return invalidRequest(name, "invalid_value", "%s is %v, and the engine ember takes %v alone", name, *v, lo)
		}
		return invalidRequest(name, "invalid_value", "%s is %v, want %v to %v", name, *v, lo, hi)
	}
	return nil
}

// check validates what does not need the model.
func (g *generate) check() *failure {
	one, p := 1, &g.Sampling
	for _, f := range []*failure{
		checkRange("temperature", p.Temperature, 0, 100),
		checkRange("top_k", p.TopK, -1, math.MaxInt32),
		checkRange("min_p", p.MinP, 0, 1),
		checkRange("presence_penalty", p.Presence, -2, 2),
		checkRange("frequency_penalty", p.Frequency, -2, 2),
		checkRange("max_tokens", g.MaxTokens, 1, math.MaxInt32),
		checkRange("max_completion_tokens", g.MaxCompletion, 1, math.MaxInt32),
		checkRange("min_tokens", g.MinTokens, 0, math.MaxInt32),
		checkRange("top_logprobs", g.TopLogprobs, 0, maxLogprobs),
		checkRange("n", g.N, one, one),
		checkRange("best_of", g.BestOf, one, one),
	} {
		if f != nil {
			return f
		}
	}
	switch {
	case p.TopP != nil && !(*p.TopP > 0 && *p.TopP <= 1):
		return invalidRequest("top_p", "invalid_value", "top_p is %v, want more than 0 and at most 1", *p.TopP)
	case p.Repetition != nil && !(*p.Repetition > 0 && *p.Repetition <= 100):
		return invalidRequest("repetition_penalty", "invalid_value", "repetition_penalty is %v, want more than 0", *p.Repetition)
	case g.Suffix != "":
		return unsupported("suffix", "suffix")
	case g.StreamOptions != nil && !g.Stream:
		return invalidRequest("stream_options", "invalid_value", "stream_options is only allowed with stream")
	case g.ResponseFormat != nil && g.ResponseFormat.Type != "text":
		return unsupported("response_format", "response_format "+strconv.Quote(g.ResponseFormat.Type))
	}
	for name, choice := range map[string]jsontext.Value{"tool_choice": g.ToolChoice, "function_call": g.FunctionCall} {
		if t := strings.TrimSpace(string(choice)); !slices.Contains([]string{"", "null", `"none"`, `"auto"`}, t) {
			return invalidRequest(name, "unsupported_parameter", "the engine ember forces no tool call: %s must be none or auto", name)
		}
	}
	return nil
}

const (
	maxStops    = 16
	maxStopLen  = 1024
	maxLogprobs = 20
)

// stops reads null, a string or a list of strings.
func (g *generate) stops() ([]string, *failure) {
	wrong := invalidRequest("stop", "invalid_type", "stop must be a string or a list of at most %d strings", maxStops)
	var out []string
	var err error
	switch g.Stop.Kind() {
	case 0:
	case '"':
		out = []string{""}
		err = json.Unmarshal(g.Stop, &out[0])
	default:
		err = json.Unmarshal(g.Stop, &out)
	}
	if err != nil || len(out) > maxStops {
		return nil, wrong
	}
	for _, s := range out {
		if s == "" || len(s) > maxStopLen {
			return nil, invalidRequest("stop", "invalid_value", "a stop string must have 1 to %d bytes", maxStopLen)
		}
	}
	return out, nil
}

// wantLogprobs is the number of requested alternatives, -1 for no logprobs.
func (g *generate) wantLogprobs(isChat bool) (int, *failure) {
	k := g.Logprobs.Kind()
	if k == 0 || k == 'n' {
		if isChat && g.TopLogprobs != nil && *g.TopLogprobs > 0 {
			return 0, invalidRequest("top_logprobs", "invalid_value", "top_logprobs needs logprobs")
		}
		return -1, nil
	}
	if isChat {
		switch {
		case k == 'f' && g.TopLogprobs != nil && *g.TopLogprobs > 0:
			return 0, invalidRequest("top_logprobs", "invalid_value", "top_logprobs needs logprobs")
		case k == 'f':
			return -1, nil
		case k != 't':
			return 0, invalidRequest("logprobs", "invalid_type", "logprobs must be true or false")
		case g.TopLogprobs == nil:
			return 0, nil
		}
		return *g.TopLogprobs, nil
	}
	var n int
	if json.Unmarshal(g.Logprobs, &n) != nil {
		return 0, invalidRequest("logprobs", "invalid_type", "logprobs must be a whole number")
	}
	if f := checkRange("logprobs", &n, 0, maxLogprobs); f != nil {
		return 0, f
	}
	return n, nil
}

func conversation(ms []message) ([]chat.Message, *failure) {
	if len(ms) == 0 {
		return nil, invalidRequest("messages", "missing_required_parameter", "messages is missing or empty (a prompt belongs to /v1/completions)")
	}
	out := make([]chat.Message, len(ms))
	for i, m := range ms {
		at := "messages[" + strconv.Itoa(i) + "]"
		switch m.Role {
		case "system", "user", "assistant", "tool", "function":
		case "developer":
			m.Role = "system" // the newer name of system
		case "":
			return nil, invalidRequest(at+".role", "missing_required_parameter", "%s has no role", at)
		default:
			return nil, invalidRequest(at+".role", "invalid_value", "%s.role is %q, want system, developer, user, assistant or tool", at, m.Role)
		}
		c, f := messageText(m.Content, at+".content")
		if f != nil {
			return nil, f
		}
		for _, t := range m.ToolCalls {
			args := string(t.Function.Arguments)
			var s string
			if json.Unmarshal(t.Function.Arguments, &s) == nil {
				args = s
			}
			name, err := json.Marshal(t.Function.Name)
			if err != nil || args == "" {
				return nil, invalidRequest(at+".tool_calls", "invalid_value", "%s has a tool call without name or arguments", at)
			}
			if c != "" {
				c += "\n"
			}
			c += "<tool_call>\n{\"name\": " + string(name) + ", \"arguments\": " + args + "}\n</tool_call>"
		}
		out[i] = chat.Message{Role: m.Role, Content: c}
	}
	return out, nil
}

// messageText reads null, a string, or a list of text parts.
func messageText(v jsontext.Value, at string) (string, *failure) {
	switch v.Kind() {
	case 0, 'n':
		return "", nil
	case '"':
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			return "", invalidRequest(at, "invalid_json", "%s: %v", at, err)
		}
		return s, nil
	case '[':
		var parts []struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(v, &parts, jsontext.AllowDuplicateNames(true)); err != nil {
			return "", invalidRequest(at, "invalid_type", "%s must be a string or a list of text parts", at)
		}
		var texts []string
		for _, p := range parts {
			switch {
			case p.Type == "text" && p.Text == nil:
				return "", invalidRequest(at, "missing_required_parameter", "%s: a part of type \"text\" has no text", at)
			case p.Type != "text":
				return "", unsupported(at, at+": a part of type "+strconv.Quote(p.Type))
			}
			texts = append(texts, *p.Text)
		}
		return strings.Join(texts, "\n"), nil
	}
	return "", invalidRequest(at, "invalid_type", "%s must be a string or a list of text parts", at)
}

// applyTo returns s, the defaults of the model, with what the request sets.
func (o *samplingOptions) applyTo(s sampling, vocab int) (sampling, *failure) {
	setIfGiven(&s.temperature, o.Temperature)
	setIfGiven(&s.topP, o.TopP)
	setIfGiven(&s.topK, o.TopK)
	setIfGiven(&s.minP, o.MinP)
	setIfGiven(&s.presence, o.Presence)
	setIfGiven(&s.frequency, o.Frequency)
	setIfGiven(&s.repetition, o.Repetition)
	for k, v := range o.Bias {
		id, err := strconv.Atoi(k)
		if err != nil || id < 0 || id >= vocab || !(v >= -100 && v <= 100) {
			return s, invalidRequest("logit_bias", "invalid_value", "logit_bias: %q: %v: want token ids and -100 to 100", k, v)
		}
		if s.bias == nil {
			s.bias = map[int]float64{}
		}
		s.bias[id] = v
	}
	return s, nil
}

// sequence makes the sequence for the loop, or the error of an invalid request.
func (g *generate) sequence(c *loadedModel, isChat bool, prompt []int) (*sequence, *failure) {
	q := &sequence{prompt: prompt, ignoreEOS: g.IgnoreEOS, stopIDs: g.StopIDs}
	var f *failure
	if q.sampling, f = g.Sampling.applyTo(c.defaults, c.model.Vocab); f != nil {
		return nil, f
	}
	setIfGiven(&q.minTokens, g.MinTokens)
	q.seed = rand.Uint64()
	if g.Sampling.Seed != nil {
		q.seed = uint64(*g.Sampling.Seed)
	}
	if q.text.stops, f = g.stops(); f != nil {
		return nil, f
	}
	q.text.include = g.IncludeStop
	if q.logprobs, f = g.wantLogprobs(isChat); f != nil {
		return nil, f
	}
	if f := checkLength(c, prompt, 1); f != nil {
		return nil, f
	}
	left := c.maxLen - len(prompt)
	switch {
	case isChat && g.MaxCompletion != nil:
		q.maxTokens = *g.MaxCompletion
	case g.MaxTokens != nil:
		q.maxTokens = *g.MaxTokens
	case isChat:
		q.maxTokens = left
	default:
		q.maxTokens = min(16, left) // OpenAI's default for completions
	}
	if q.maxTokens > left {
		return nil, invalidRequest("max_tokens", "context_length_exceeded",
			"This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d for the completion). "+
				"Please reduce the length of the prompt or of the completion.",
			c.maxLen, len(prompt)+q.maxTokens, len(prompt), q.maxTokens)
	}
	if q.minTokens > q.maxTokens {
		return nil, invalidRequest("min_tokens", "invalid_value", "min_tokens %d is more than max_tokens %d", q.minTokens, q.maxTokens)
	}
	return q, nil
}

// checkLength validates a prompt's tokens and its length with more tokens to follow.
func checkLength(c *loadedModel, prompt []int, more int) *failure {
	name := "prompt"
	if more == 0 {
		name = "input"
	}
	if len(prompt) == 0 {
		return invalidRequest(name, "invalid_value", "%s has no text", name)
	}
	if len(prompt)+more > c.maxLen {
		return tooLong(c, "", len(prompt))
	}
	for _, id := range prompt {
		if id < 0 || id >= c.model.Vocab {
			return invalidRequest(name, "invalid_value", "token id %d is outside the vocabulary of %d", id, c.model.Vocab)
		}
	}
	return nil
}

type input struct {
	text   string
	tokens []int
	ids    bool
}

func (i input) encode(c *loadedModel) ([]int, *failure) {
	if i.ids {
		return i.tokens, nil
	}
	return c.encode(i.text, true)
}

// encode refuses text that must be too long before tokenizing it. The factor of four
// allows for normalization, which can shorten a text.
func (m *loadedModel) encode(text string, around bool) ([]int, *failure) {
	if minimum := len(text) / max(4*m.tok.Longest, 1); minimum > m.maxLen {
		return nil, tooLong(m, "at least ", minimum)
	}
	return m.tok.Encode(text, around), nil
}

func tooLong(c *loadedModel, about string, n int) *failure {
	return invalidRequest("input_tokens", "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your request has %s%d input tokens. Please reduce the length of the input.",
		c.maxLen, about, n)
}

// parseInputs reads a string, a list of strings, a list of ids, or a list of such lists.
func parseInputs(v jsontext.Value, name string, maximum int) ([]input, *failure) {
	wrong := invalidRequest(name, "invalid_type",
		"%s must be a string, a list of strings, a list of token ids, or a list of lists of token ids", name)
	switch v.Kind() {
	case 0, 'n':
		return nil, invalidRequest(name, "missing_required_parameter", "%s is missing (messages belong to /v1/chat/completions)", name)
	case '"':
		var s string
		if json.Unmarshal(v, &s) != nil {
			return nil, wrong
		}
		return []input{{text: s}}, nil
	case '[':
	default:
		return nil, wrong
	}
	var list []jsontext.Value
	if json.Unmarshal(v, &list) != nil || len(list) == 0 {
		return nil, wrong
	}
	if list[0].Kind() == '0' {
		var ids []int
		if json.Unmarshal(v, &ids) != nil {
			return nil, wrong
		}
		return []input{{tokens: ids, ids: true}}, nil
	}
	if len(list) > maximum {
		return nil, invalidRequest(name, "invalid_value", "%s has %d entries, at most %d are supported", name, len(list), maximum)
	}
	out := make([]input, len(list))
	for i, e := range list {
		var err error
		switch e.Kind() {
		case '"':
			err = json.Unmarshal(e, &out[i].text)
		case '[':
			out[i].ids = true
			err = json.Unmarshal(e, &out[i].tokens)
		default:
			return nil, wrong
		}
		if err != nil {
			return nil, wrong
		}
	}
	return out, nil
}
