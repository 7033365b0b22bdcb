package openai

import (
	"bytes"
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
)

// Bounds of what a request may ask of an engine that others share. Each stands
// for an engine that one request has brought down, or could have: a field of a
// few bytes that multiplies memory, a schema or a pattern that compiles for
// minutes, an address that the engine would fetch.
const (
	MaxN           = 8         // n and best_of
	MaxLogprobs    = 20        // logprobs, top_logprobs, prompt_logprobs, n_probs
	MaxLogitBias   = 300       // members of logit_bias
	MaxStops       = 16        // elements of stop
	MaxStopBytes   = 4 << 10   // of stop, as encoded in the body
	MaxTokenLists  = 1024      // elements of stop_token_ids, allowed_token_ids, bad_words
	MaxPrompts     = 2048      // elements of prompt, input, documents and the like, where they are no token ids
	MaxOutput      = 1<<31 - 1 // max_tokens and its other names
	MaxMinTokens   = 1 << 20
	MaxDimensions  = 1 << 16
	MaxSchemaBytes = 64 << 10 // of response_format, structured_outputs, guided_… and text
	MaxToolsBytes  = 256 << 10
	MaxSchemaDepth = 32      // nesting of any of these: sixteen levels of a JSON schema
	MaxPattern     = 512     // bytes of a regular expression
	MaxRepeat      = 1 << 16 // minLength, maxItems and the like of a schema
	MaxTemplate    = 4 << 10
	MaxSalt        = 128
)

// outside is the error of a parameter that is out of its bounds.
func outside(key []byte, format string, args ...any) *Error {
	return New(InvalidValue, string(key)+" "+fmt.Sprintf(format, args...)+".").With(pointer(key))
}

// checkMember checks one top-level member, whose value is valid JSON; count is the
// number of elements of an array or object. Unknown members pass: engines have many
// more parameters, and ignore those they do not know.
func (p *peeker) checkMember(key, v []byte, count int) error {
	if v[0] == 'n' { // null
		return nil
	}
	switch string(key) {
	case "best_of":
		return between(key, v, 1, MaxN)
	case "logprobs":
		if v[0] == 't' || v[0] == 'f' {
			return nil
		}
		return between(key, v, 0, MaxLogprobs)
	case "top_logprobs", "prompt_logprobs", "n_probs":
		return between(key, v, 0, MaxLogprobs)
	case "min_tokens":
		return between(key, v, 0, MaxMinTokens)
	case "dimensions":
		return between(key, v, 1, MaxDimensions)
	case "priority": // of the engine's queue, before or after other callers
		if string(v) != "0" {
			return unsupported(key)
		}
	case "documents", "query", "queries", "text_1", "text_2", "data_1", "data_2", "items", "inputs", "texts":
		if err := checkCount(key, v, count); err != nil {
			return err
		}
		return p.checkMedia(key, v)
	case "logit_bias":
		if v[0] != '{' && (v[0] != '[' || count > 0) || count > MaxLogitBias { // PHP writes an empty object as []
			return outside(key, "must be an object of at most %d members", MaxLogitBias)
		}
	case "stop", "stop_sequences":
		if v[0] != '"' && v[0] != '[' || count > MaxStops || len(v) > MaxStopBytes {
			return outside(key, "must be a string or at most %d of them, of %d bytes together", MaxStops, MaxStopBytes)
		}
	case "stop_token_ids", "allowed_token_ids", "bad_words":
		if v[0] != '[' || count > MaxTokenLists {
			return outside(key, "must be an array of at most %d elements", MaxTokenLists)
		}
	case "response_format", "structured_outputs", "structural_tag", "text", "json_schema",
		"guided_json", "guided_choice", "guided_grammar", "grammar", "ebnf":
		return schema(key, v, MaxSchemaBytes)
	case "tools", "functions":
		return p.checkTools(key, v)
	case "function_call":
		p.env.formBound = p.env.formBound || forcesTool(v)
		return p.checkMedia(key, v)
	case "tool_choice": // names
		p.env.formBound = p.env.formBound || forcesTool(v)
	case "metadata": // labels
	case "guided_regex", "regex":
		return pattern(key, v)
	case "cache_salt":
		if !isPlain(v) || len(v) < 3 || len(v) > MaxSalt+2 {
			return outside(key, "must be a string of 1 to %d letters, digits, dots, dashes and underscores", MaxSalt)
		}
	case "chat_template_kwargs":
		return template(key, v)
	case "chat_template", "request_id", "rid", "kv_transfer_params", "ec_transfer_params", "mm_processor_kwargs", "media_io_kwargs",
		"api_base", "base_url", "logits_processors", "custom_logit_processor", "custom_params", "vllm_xargs", "extra_args", "lora_path", "lora",
		"session_params",
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "id_slot", "slot_id", "multi_modal_data", "multi_modal_uuids":
		// Code, addresses, ids of other requests and places in the engine are not for
		// callers to set.
		return unsupported(key)
	default:
		if c := v[0]; c == '"' || c == '{' || c == '[' || bytes.HasSuffix(key, []byte("_embeds")) {
			return p.checkMedia(key, v)
		}
	}
	return nil
}

// unsupported is the error of a parameter that no caller may set.
func unsupported(key []byte) *Error {
	return New(UnsupportedParameter, cleanMessage(string(key))+" is not supported here: leave it out. "+
		"What an engine does for all requests its model file's args set; thaw-priority is the header for priorities.").With(pointer(key))
}

func between(key, v []byte, from, to int64) error {
	if n, ok := parseWhole(v); !ok || n < from || n > to {
		return New(InvalidValue, fmt.Sprintf("%s must be an integer from %d to %d.%s", key, from, to, quoted(v))).With(pointer(key))
	}
	return nil
}

// checkCount checks how many texts a member has. An array of numbers is one text of token
// ids; of anything else, each element is one.
func checkCount(key, v []byte, count int) error {
	switch {
	case string(key) == "messages":
	case v[0] == '[' && count > MaxPrompts:
		if c := v[skipSpace(v, 1)]; c < '0' || c > '9' {
			return outside(key, "must have at most %d elements", MaxPrompts)
		}
	case v[0] == '{':
		w := walker{b: v, member: func(_, _, value []byte) error {
			if value[0] != '[' {
				return nil
			}
			_, n, err := scanValue(value, 0, 1, nil)
			if err != nil {
				return err
			}
			return checkCount(key, value, n)
		}}
		_, err := w.walk(0, 1, nil)
		return err
	}
	return nil
}

// schema checks a value that an engine compiles into a grammar.
func schema(key, v []byte, most int) error {
	if len(v) > most {
		return outside(key, "must have at most %d bytes", most)
	}
	var err error
	if v[0] == '"' && holdsJSON(key) {
		err = schemaText(key, v, maxTexts)
	} else {
		err = schemaValue(key, v, 1, maxTexts)
	}
	if f, ok := err.(*schemaFault); ok {
		return New(InvalidValue, string(key)+" has "+f.what()+": "+f.change+".").With(pointer(key))
	}
	return err
}

// maxTexts bounds the nesting of JSON in strings of JSON.
const maxTexts = 2

// holdsJSON reports whether engines read a string of this name as JSON.
func holdsJSON(name []byte) bool {
	switch string(name) {
	case "json", "schema", "json_schema", "guided_json", "structural_tag", "structured_outputs", "response_format", "parameters",
		"input_schema":
		return true
	}
	return false
}

// schemaText checks a string; JSON in it is checked as if it were in the body, with texts
// more strings of JSON in it.
func schemaText(key, literal []byte, texts int) error {
	text := []byte(unquoteText(literal))
	i := skipSpace(text, 0)
	if i == len(text) || text[i] != '{' && text[i] != '[' && text[i] != '"' {
		return nil
	}
	if texts == 0 {
		return &schemaFault{has: "strings of JSON in strings of JSON", change: "send the JSON itself"}
	}
	end, _, err := scanValue(text, i, 1, nil)
	if err != nil || skipSpace(text, end) != len(text) {
		return &schemaFault{has: "a string that is not valid JSON", change: "send the JSON itself"}
	}
	if text[i] == '"' {
		return schemaText(key, text[i:end], texts-1)
	}
	return schemaValue(key, text[i:end], 1, texts-1)
}

// schemaValue checks a value at nesting depth deep.
func schemaValue(key, v []byte, deep, texts int) error {
	w := walker{b: v, depth: MaxSchemaDepth, member: func(parent, name, value []byte) error {
		if string(parent) == "patternProperties" && patternText(string(name)) != nil {
			return badPattern(string(name))
		}
		switch c := value[0]; {
		case c == '"' && (string(name) == "pattern" || string(name) == "regex"):
			if pattern(key, value) != nil {
				return badPattern(unquoteText(value))
			}
		case c == '"' && holdsJSON(name):
			return schemaText(key, value, texts)
		case (c == '-' || c >= '0' && c <= '9') && isRepeat(name):
			if n, ok := parseInteger(value); !ok || n > MaxRepeat {
				return &schemaFault{has: fmt.Sprintf("%s %s, which is no integer from 0 to %d", name, value, MaxRepeat),
					change: "change it or leave it out"}
			}
		}
		return nil
	}}
	return w.checkDepth(key, deep)
}

// checkDepth visits all of w.b, which is at nesting depth deep.
func (w *walker) checkDepth(key []byte, deep int) error {
	ok, err := w.walk(0, deep, nil)
	if err == nil && ok < 0 {
		return outside(key, "must not be nested deeper than %d", MaxSchemaDepth)
	}
	return err
}

// isRepeat reports whether a keyword of JSON Schema counts: a grammar has a state for each.
func isRepeat(name []byte) bool {
	switch string(name) {
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains":
		return true
	}
	return false
}

func badPattern(text string) error {
	f := &schemaFault{has: "a pattern that RE2 does not take, " + cleanMessage(text),
		change: "write it without lookarounds, back-references and large counts, or leave it out"}
	if len(text) > MaxPattern {
		f.has, f.change = fmt.Sprintf("a pattern of more than %d bytes", MaxPattern), "shorten it or leave it out"
	}
	return f
}

// pattern checks a regular expression. What RE2's syntax takes has no
// lookaround, no back-reference and no counted repetition above 1,000: it
// compiles in linear time wherever it is compiled.
func pattern(key, v []byte) error {
	if v[0] != '"' || len(v) > MaxPattern+2 {
		return outside(key, "must be a string of at most %d bytes", MaxPattern)
	}
	if patternText(unquoteText(v)) != nil {
		return outside(key, "must be a regular expression that RE2 takes: without lookarounds, back-references and large counts")
	}
	return nil
}

func patternText(text string) error {
	if len(text) > MaxPattern {
		return errLongPattern
	}
	_, err := syntax.Parse(text, syntax.Perl)
	return err
}

var errLongPattern = errors.New("a long pattern")

// template checks the variables of a chat template. The engine's own arguments must not
// be among them.
func template(key, v []byte) error {
	if v[0] != '{' || len(v) > MaxTemplate {
		return outside(key, "must be an object of at most %d bytes", MaxTemplate)
	}
	w := walker{b: v, member: func(parent, name, _ []byte) error {
		if parent != nil {
			return nil
		}
		switch n := string(name); {
		case n == "chat_template", n == "tokenize", n == "conversation", n == "messages", n == "tokenizer", n == "tokenizer_kwargs",
			n == "padding", n == "truncation", n == "max_length", n == "return_tensors", n == "return_dict", n == "processor_kwargs",
			strings.HasPrefix(n, "_"):
			return outside(key, "must not set %s", cleanMessage(n))
		}
		return nil
	}}
	_, err := w.walk(0, 1, nil)
	return err
}

// cleanMessage shortens a name from a request for use in a message.
func cleanMessage(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// isPlain reports whether a literal is a string of letters, digits, '.', '_' and '-'.
func isPlain(v []byte) bool { return v[0] == '"' && len(bytes.Trim(v[1:len(v)-1], wordBytes)) == 0 }

// walker visits the members of a value that scanValue has accepted.
type walker struct {
	b        []byte
	depth    int    // most nesting; 0: MaxDepth holds already
	property []byte // the innermost property of a schema that the walk is in
	// member is called for every member of every object: the name it and the
	// object itself have, unescaped (parent is nil at the top), and its value.
	member func(parent, name, value []byte) error
}

// walk reads the value at i, at nesting depth deep, and returns where it ends; -1
// where it is nested too deep.
func (w *walker) walk(i, deep int, parent []byte) (int, error) {
	b := w.b
	c := b[i]
	if c != '{' && c != '[' {
		end, _, err := scanValue(b, i, 1, nil)
		return end, err
	}
	if w.depth > 0 && deep > w.depth {
		return -1, nil
	}
	closing := c + 2
	for i = skipSpace(b, i+1); b[i] != closing; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		name := parent // the elements of an array are called what the array is
		if c == '{' {
			key, end, err := scanKey(b, i)
			if err != nil {
				return 0, err
			}
			name, i = key, skipSpace(b, skipSpace(b, end)+1)
		}
		outer := w.property
		if c == '{' && string(parent) == "properties" {
			w.property = name
		}
		end, err := w.walk(i, deep+1, name)
		w.property = outer
		if err != nil || end < 0 {
			return end, err
		}
		if c == '{' {
			if err := w.member(parent, name, b[i:end]); err != nil {
				if f, ok := err.(*schemaFault); ok && f.property == "" {
					f.property = string(w.property)
				}
				return 0, err
			}
		}
		i = end
	}
	return i + 1, nil
}
