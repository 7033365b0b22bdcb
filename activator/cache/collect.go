package cache

import (
	"encoding/base64"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// plainOf makes a plain answer of the chunks of a stream; nil where a chunk holds something
// whose place in a plain answer is not known, unless it is to be guessed.
func plainOf(path string, chunks [][]byte, usage []byte, guess bool) []byte {
	var top []member
	choices := map[int]*collected{}
	for _, chunk := range chunks {
		for _, m := range membersOf(chunk) {
			switch {
			case m.name == "choices" && isNull(m.value):
			case m.name == "choices":
				list, ok := elements(m.value)
				if !ok {
					return nil
				}
				for _, c := range list {
					choice := membersOf(c)
					i, err := strconv.Atoi(strings.Trim(string(value(choice, "index")), `"`))
					if err != nil && (!guess || !isNull(value(choice, "index"))) { // some engines with one choice leave it out
						return nil
					}
					if choices[i] == nil {
						choices[i] = &collected{guess: guess}
					}
					if !choices[i].add(choice) {
						return nil
					}
				}
				if value(top, "choices") == nil {
					top = append(top, member{"choices", jsontext.Value("[]")})
				}
			case m.name == "usage" || m.name == "obfuscation":
			case m.name == "object" && path == pathChat:
				top = setMember(top, m.name, jsontext.Value(`"chat.completion"`))
			case value(top, m.name) == nil || !isNull(m.value) && m.name != "id" && m.name != "created":
				top = setMember(top, m.name, m.value)
			}
		}
	}
	var list []jsontext.Value
	for _, i := range slices.Sorted(maps.Keys(choices)) {
		list = append(list, choices[i].object(i, path == pathChat))
	}
	top = setMember(top, "choices", array(list))
	if usage != nil {
		top = append(top, member{"usage", usage})
	}
	return object(top)
}

// collected is one choice of a stream, put together.
type collected struct {
	texts    []textMember // of the message, in order
	calls    map[int]*call
	moved    map[int]int // the call that an index now stands for, where that is another
	function *call       // in the form that tool_calls have replaced
	sound    *sound
	logprobs []member
	guess    bool
	parts    bool     // deltas carry the message
	more     []member // of the message, of engines' own: of texts and lists the parts, of others the last
	rest     []member // of the choice
}

type textMember struct {
	name string
	text []byte
	null bool
}

// sound is the audio of a message. Its members have values but for those that come in parts.
type sound struct {
	members    []member
	transcript []byte
	data       []string
}

type call struct {
	id, kind  jsontext.Value
	name      string
	arguments []byte
}

func (c *collected) add(choice []member) bool {
	c.parts = c.parts || slices.ContainsFunc(membersOf(value(choice, "delta")), func(d member) bool {
		return d.name != "role" && !isNull(d.value) && string(d.value) != `""`
	})
	for _, m := range choice {
		ok := true
		if m.name == "message" && c.parts {
			continue // some engines repeat there what the deltas have said so far
		}
		switch m.name {
		case "index":
		case "text":
			ok = c.addText(m)
		case "delta", "message": // some engines send the whole message as one event, or its text alone
			if c.guess && m.value.Kind() == '"' {
				ok = c.addText(member{"content", m.value})
			}
			for _, d := range membersOf(m.value) {
				switch d.name {
				case "role", "content", "reasoning_content", "reasoning", "refusal":
					ok = ok && c.addText(d)
				case "tool_calls":
					ok = ok && c.addCalls(d.value)
				case "function_call":
					ok = ok && c.addFunction(d.value)
				case "audio":
					ok = ok && c.addSound(d.value)
				default:
					ok = ok && c.addMore(d)
				}
			}
		case "logprobs":
			ok = c.addLogprobs(m.value)
		default: // finish_reason, stop_reason, what filters of content found
			if value(c.rest, m.name) == nil || !isNull(m.value) && string(m.value) != `""` {
				c.rest = setMember(c.rest, m.name, m.value)
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// addMore adds a member whose place in a plain answer is guessed, if that is wanted.
func (c *collected) addMore(m member) bool {
	before := value(c.more, m.name)
	var one, two string
	switch {
	case isNull(m.value) || string(m.value) == "[]":
		return true
	case !c.guess:
		return false
	case before.Kind() == '[' && m.value.Kind() == '[':
		m.value = concat(before, m.value)
	case m.name != "name" && json.Unmarshal(before, &one) == nil && json.Unmarshal(m.value, &two) == nil:
		m.value, _ = jsontext.AppendQuote(nil, one+two)
	}
	c.more = setMember(c.more, m.name, m.value)
	return true
}

func (c *collected) addText(m member) bool {
	i := slices.IndexFunc(c.texts, func(t textMember) bool { return t.name == m.name })
	if i < 0 {
		i = len(c.texts)
		c.texts = append(c.texts, textMember{name: m.name, null: true})
	}
	t := &c.texts[i]
	if isNull(m.value) {
		return true
	}
	var s string
	if m.value.Kind() == '[' { // parts of several types
		return c.addMore(m)
	}
	if json.Unmarshal(m.value, &s) != nil {
		if !c.guess {
			return false
		}
		if json.Unmarshal(value(membersOf(m.value), "text"), &s) != nil {
			s = string(m.value) // a number, or what only the model's own clients know
		}
	}
	if value(c.more, m.name) != nil { // parts, and then the text
		part := object([]member{{"type", jsontext.Value(`"text"`)}, {"text", m.value}})
		return c.addMore(member{m.name, array([]jsontext.Value{part})})
	}
	if m.name == "role" {
		t.text = t.text[:0] // some engines repeat it
	}
	t.null = false
	t.text = append(t.text, s...)
	return true
}

func (c *collected) addCalls(v jsontext.Value) bool {
	if isNull(v) {
		return true
	}
	list, ok := elements(v)
	if c.guess && v.Kind() == '{' { // older TGI: one call, by itself
		list, ok = []jsontext.Value{v}, true
	}
	if !ok {
		return false
	}
	for _, e := range list {
		parts := membersOf(e)
		i, ok := c.callIndex(parts)
		if !ok {
			return false
		}
		if c.calls == nil {
			c.calls = map[int]*call{}
		}
		k := c.calls[i]
		if k == nil {
			k = &call{kind: jsontext.Value(`"function"`)}
			c.calls[i] = k
		}
		if id := value(parts, "id"); !isNull(id) && string(id) != `""` {
			k.id = id
		}
		if kind := value(parts, "type"); !isNull(kind) {
			k.kind = kind
		}
		if !k.add(membersOf(value(parts, "function"))) {
			return false
		}
	}
	return true
}

func (c *call) add(function []member) bool {
	var name, arguments *string
	if v := value(function, "name"); v != nil && json.Unmarshal(v, &name) != nil {
		return false
	}
	switch v := value(function, "arguments"); {
	case v.Kind() == '{': // whole, and not as text
		c.arguments = append(c.arguments, v...)
	case v != nil && json.Unmarshal(v, &arguments) != nil:
		return false
	}
	if name != nil && *name != "" {
		c.name = *name
	}
	if arguments != nil {
		c.arguments = append(c.arguments, *arguments...)
	}
	return true
}

func (c *collected) addFunction(v jsontext.Value) bool {
	if isNull(v) {
		return true
	}
	if c.function == nil {
		c.function = &call{}
	}
	return v.Kind() == '{' && c.function.add(membersOf(v))
}

func (c *collected) addSound(v jsontext.Value) bool {
	if isNull(v) {
		return true
	}
	if c.sound == nil {
		c.sound = &sound{}
	}
	for _, m := range membersOf(v) {
		if isNull(m.value) {
			continue
		}
		if m.name == "data" || m.name == "transcript" {
			var part string
			if json.Unmarshal(m.value, &part) != nil {
				return false
			}
			if m.name == "data" {
				c.sound.data = append(c.sound.data, part)
			} else {
				c.sound.transcript = append(c.sound.transcript, part...)
			}
		}
		c.sound.members = setMember(c.sound.members, m.name, m.value)
	}
	return v.Kind() == '{'
}

func (s *sound) object() jsontext.Value {
	for i, m := range s.members {
		switch m.name {
		case "data":
			s.members[i].value, _ = jsontext.AppendQuote(nil, joinData(s.data))
		case "transcript":
			s.members[i].value, _ = jsontext.AppendQuote(nil, s.transcript)
		}
	}
	return object(s.members)
}

// joinData joins parts in base64: most providers encode each by itself, some cut one text.
func joinData(parts []string) string {
	var whole []byte
	for _, p := range parts {
		b, err := base64.StdEncoding.DecodeString(p)
		if err != nil {
			return strings.Join(parts, "")
		}
		whole = append(whole, b...)
	}
	return base64.StdEncoding.EncodeToString(whole)
}

// callIndex is the index of the call that a part belongs to. Some engines write none: a part
// with another id, or with a name and no id, then begins the next call.
func (c *collected) callIndex(parts []member) (int, bool) {
	if v := value(parts, "index"); !isNull(v) {
		i, err := strconv.Atoi(strings.Trim(string(v), `"`))
		return c.callAt(i, parts), err == nil
	}
	last := -1
	id := value(parts, "id")
	for i, k := range c.calls {
		if !isNull(id) && string(id) == string(k.id) {
			return i, true
		}
		last = max(last, i)
	}
	name := value(membersOf(value(parts, "function")), "name")
	if last < 0 || !isNull(id) && string(id) != `""` || !isNull(name) && string(name) != `""` {
		last++
	}
	return last, true
}

// callAt is the call that an index stands for. Some engines give every call the index 0: a
// part with another id and a name, behind whole arguments, then begins the next call.
func (c *collected) callAt(i int, parts []member) int {
	at, ok := c.moved[i]
	if !ok {
		at = i
	}
	k, id, name := c.calls[at], value(parts, "id"), value(membersOf(value(parts, "function")), "name")
	if k == nil || isNull(k.id) || isNull(id) || string(id) == `""` || string(id) == string(k.id) ||
		isNull(name) || string(name) == `""` || !jsontext.Value(k.arguments).IsValid() {
		return at
	}
	if c.moved == nil {
		c.moved = map[int]int{}
	}
	c.moved[i] = slices.Max(slices.Collect(maps.Keys(c.calls))) + 1
	return c.moved[i]
}

func (c *collected) addLogprobs(v jsontext.Value) bool {
	if isNull(v) {
		return true
	}
	if v.Kind() != '{' {
		return false
	}
	for _, m := range membersOf(v) {
		switch {
		case isNull(m.value):
			if value(c.logprobs, m.name) == nil {
				c.logprobs = setMember(c.logprobs, m.name, m.value)
			}
		case m.value.Kind() != '[':
			return false
		default:
			before := value(c.logprobs, m.name)
			if isNull(before) {
				before = jsontext.Value("[]")
			}
			c.logprobs = setMember(c.logprobs, m.name, concat(before, m.value))
		}
	}
	return true
}

// object is the choice of a plain answer.
func (c *collected) object(index int, chat bool) jsontext.Value {
	out := []member{{"index", jsontext.Value(strconv.Itoa(index))}}
	var message []member
	for _, t := range c.texts {
		v := jsontext.Value("null")
		if !t.null {
			v, _ = jsontext.AppendQuote(nil, t.text)
		}
		message = append(message, member{t.name, v})
	}
	if chat {
		if value(message, "role") == nil {
			message = append([]member{{"role", jsontext.Value(`"assistant"`)}}, message...)
		}
		called := len(c.calls) > 0 || c.function != nil
		if value(message, "content") == nil || called && string(value(message, "content")) == `""` {
			message = setMember(message, "content", jsontext.Value("null"))
		}
		for _, m := range c.more {
			message = setMember(message, m.name, m.value)
		}
		if len(c.calls) > 0 {
			message = append(message, member{"tool_calls", c.callList()})
		}
		if c.function != nil {
			message = append(message, member{"function_call", c.function.object()})
		}
		if c.sound != nil {
			message = append(message, member{"audio", c.sound.object()})
		}
		out = append(out, member{"message", object(message)})
	} else {
		out = append(out, message...)
	}
	logprobs := jsontext.Value("null")
	if c.logprobs != nil {
		logprobs = object(c.logprobs)
	}
	return object(append(append(out, member{"logprobs", logprobs}), c.rest...))
}

func (c *collected) callList() jsontext.Value {
	var list []jsontext.Value
	for _, i := range slices.Sorted(maps.Keys(c.calls)) {
		k := c.calls[i]
		var one []member
		if k.id != nil {
			one = append(one, member{"id", k.id})
		}
		list = append(list, object(append(one, member{"type", k.kind}, member{"function", k.object()})))
	}
	return array(list)
}

func (c *call) object() jsontext.Value {
	name, _ := jsontext.AppendQuote(nil, c.name)
	arguments, _ := jsontext.AppendQuote(nil, c.arguments)
	return object([]member{{"name", name}, {"arguments", arguments}})
}
