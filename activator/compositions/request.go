package compositions

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/functions/openai"
)

// clientRequest is what a Composition reads of a client's request.
type clientRequest struct {
	messages  []compose.Message
	schema    jsontext.Value // of the answer; nil: free text
	format    jsontext.Value // response_format, as the client wrote it
	maxTokens int            // of the answer; 0: not set
	maxKey    string         // the client's name of maxTokens
	sampling  jsontext.Value // every other key
}

// refusedKeys are what members would have to take part in, one by one.
var refusedKeys = []string{
	"tools", "functions", "function_call", "logprobs", "top_logprobs", "best_of", "echo", "audio", "modalities", "prediction",
	"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "prompt_logprobs",
}

// maxRequest bounds the body of a request in bytes: each member gets a copy.
const maxRequest = 2 << 20

// readRequest reads the body of a request, which the data path has checked to be JSON.
func readRequest(body []byte, env *openai.Envelope) (c clientRequest, e *openai.Error) {
	if len(body) > maxRequest {
		return c, openai.New(openai.RequestTooLarge,
			fmt.Sprintf("A request to a Composition is at most %d MiB: each of its members gets it.", maxRequest>>20))
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal(body, &all); err != nil {
		return c, openai.New(openai.InvalidJSON, "")
	}
	for _, key := range refusedKeys {
		if v, ok := all[key]; ok && !isOff(v) {
			return c, unsupported(key, "the answer is written from those of several members")
		}
		delete(all, key)
	}
	if v, ok := all["tool_choice"]; ok && !isOff(v) && string(v) != `"none"` {
		return c, unsupported("tool_choice", "the answer is written from those of several members")
	}
	if env.N > 1 {
		return c, unsupported("n", "there is one answer")
	}
	if c.messages, e = readMessages(all["messages"]); e != nil {
		return c, e
	}
	if c.format, c.schema, e = readFormat(all["response_format"]); e != nil {
		return c, e
	}
	for _, key := range []string{"max_completion_tokens", "max_tokens"} {
		var n int
		if v := all[key]; c.maxTokens == 0 && v != nil && json.Unmarshal(v, &n) == nil && n > 0 {
			c.maxTokens, c.maxKey = n, key
		}
	}
	for _, key := range []string{"model", "messages", "stream", "stream_options", "response_format", "max_tokens", "max_completion_tokens", "n", "tool_choice", "parallel_tool_calls"} {
		delete(all, key)
	}
	if len(all) > 0 {
		if c.sampling, _ = json.Marshal(all, json.Deterministic(true)); c.sampling == nil {
			return c, openai.New(openai.InvalidJSON, "")
		}
	}
	return c, nil
}

// isOff reports whether the value of a key is what leaving it out means.
func isOff(v jsontext.Value) bool {
	return slices.Contains([]string{"null", "false", "0", "[]", `["text"]`}, string(v))
}

func unsupported(key, why string) *openai.Error {
	return openai.New(openai.UnsupportedParameter,
		"A Composition takes no `"+key+"`: "+why+". Leave it out, or ask a member by its own name.").With(key)
}

// readMessages reads messages whose content is text.
func readMessages(raw jsontext.Value) ([]compose.Message, *openai.Error) {
	var list []struct {
		Role      string         `json:"role"`
		Content   jsontext.Value `json:"content"`
		ToolCalls jsontext.Value `json:"tool_calls"`
	}
	if raw == nil || json.Unmarshal(raw, &list, openai.Tolerant) != nil || len(list) == 0 {
		return nil, openai.New(openai.InvalidValue, "messages is a list of at least one message with a role and a content.").With("messages")
	}
	messages := make([]compose.Message, len(list))
	for i, m := range list {
		at := fmt.Sprintf("messages[%d]", i)
		if m.Role == "" {
			return nil, openai.New(openai.InvalidValue, at+" has no role.").With(at + ".role")
		}
		if m.Role == "tool" || m.Role == "function" || m.ToolCalls != nil && !isOff(m.ToolCalls) {
			return nil, openai.New(openai.UnsupportedParameter, "A Composition takes no calls of tools, and "+at+" is about one.").With(at)
		}
		text, ok := readContent(m.Content)
		if !ok {
			return nil, openai.New(openai.UnsupportedParameter,
				"A Composition takes text alone, and "+at+" holds something else, such as an image.").With(at + ".content")
		}
		messages[i] = compose.Message{Role: m.Role, Content: text}
	}
	return messages, nil
}

// readContent reads a text, or the text of a list of parts; false: there is more than text.
func readContent(raw jsontext.Value) (text string, ok bool) {
	switch raw.Kind() {
	case '"':
		return text, json.Unmarshal(raw, &text, openai.Tolerant) == nil
	case 'n':
		return "", true
	case '[':
	default:
		return "", false
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts, openai.Tolerant) != nil {
		return "", false
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Text == nil || p.Type != "text" && p.Type != "input_text" && p.Type != "" {
			return "", false
		}
		texts[i] = *p.Text
	}
	return strings.Join(texts, "\n"), true
}

// anyObject is the schema that json_object stands for.
const anyObject = `{"type":"object"}`

func readFormat(raw jsontext.Value) (format, schema jsontext.Value, e *openai.Error) {
	if raw == nil || raw.Kind() == 'n' {
		return nil, nil, nil
	}
	var f struct {
		Type   string `json:"type"`
		Schema struct {
			Schema jsontext.Value `json:"schema"`
		} `json:"json_schema"`
	}
	if json.Unmarshal(raw, &f, openai.Tolerant) == nil {
		switch f.Type {
		case "text":
			return nil, nil, nil
		case "json_object":
			return slices.Clone(raw), jsontext.Value(anyObject), nil
		case "json_schema":
			if f.Schema.Schema.Kind() == '{' {
				return slices.Clone(raw), f.Schema.Schema, nil
			}
		}
	}
	return nil, nil, openai.New(openai.InvalidValue, "response_format is {\"type\": \"text\"}, {\"type\": \"json_object\"} or {\"type\": "+
		"\"json_schema\", \"json_schema\": {\"name\", \"schema\"}}.").With("response_format")
}
