package openai

// Section is a part of a body that [Peek] remembers for the Router.
type Section int

// The sections. Where a body has several members of one section, the first counts, and
// messages before input and prompt.
const (
	SectionPrompt Section = iota // messages, input or prompt
	SectionSystem                // system or instructions
	SectionTexts                 // documents and other lists of texts
	SectionTools                 // tools or functions
	SectionFormat                // response_format, output_format or text
	SectionGuided                // a grammar, schema or pattern of the engine's own
	sections
)

// addSection remembers where a top-level member is.
func (e *Envelope) addSection(key []byte, at span, null bool) {
	var s Section
	switch string(key) {
	case "messages", "input", "prompt":
		s = SectionPrompt
	case "system", "instructions":
		s = SectionSystem
	case "documents", "queries", "text_2", "data_2", "items", "inputs", "texts":
		s = SectionTexts
	case "tools", "functions":
		s = SectionTools
	case "response_format", "output_format", "text":
		s = SectionFormat
	case "guided_json", "guided_choice", "guided_grammar", "guided_regex", "structured_outputs", "structural_tag",
		"json_schema", "grammar", "ebnf", "regex":
		s = SectionGuided
	default:
		return
	}
	if !null && (e.sections[s] == (span{}) || string(key) == "messages") {
		e.sections[s] = at
	}
}

// Section returns a section of the body that e was read from; nil where it has none.
func (e *Envelope) Section(body []byte, s Section) []byte {
	at := e.sections[s]
	return body[at.at:at.end]
}

// Structured reports whether the parameters of the request bind the form of the answer: a
// response format other than text, a grammar or schema of the engine's own, or a strict
// tool.
func (e *Envelope) Structured(body []byte) bool {
	if len(e.Section(body, SectionGuided)) > 0 {
		return true
	}
	if len(e.Section(body, SectionFormat)) == 0 && len(e.Section(body, SectionTools)) == 0 {
		return false
	}
	found := false
	visit := func(v []byte, member func(parent, name, value []byte) error) {
		if len(v) > 0 && (v[0] == '{' || v[0] == '[') && !found {
			w := walker{b: v, member: member}
			w.walk(0, 1, nil)
		}
	}
	visit(e.Section(body, SectionFormat), func(parent, name, value []byte) error {
		if string(name) == "type" && value[0] == '"' && (parent == nil || string(parent) == "format") {
			switch unquoteText(value) {
			case "json_object", "json_schema", "structural_tag", "grammar", "regex":
				found = true
			}
		}
		return nil
	})
	visit(e.Section(body, SectionTools), func(parent, name, value []byte) error {
		if string(name) == "strict" && (parent == nil || string(parent) == "function") && value[0] == 't' {
			found = true
		}
		return nil
	})
	return found
}
