package cache

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"maps"
	"slices"
	"strconv"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// member of an object; the order is kept.
type member struct {
	name  string
	value jsontext.Value
}

// membersOf is the members of an object without white space; nil for any other value.
func membersOf(v []byte) (list []member) {
	split(v, func(name, value []byte) {
		list = append(list, member{string(name), value})
	})
	return list
}

func value(list []member, name string) jsontext.Value {
	for i := range list {
		if list[i].name == name {
			return list[i].value
		}
	}
	return nil
}

func isNull(v jsontext.Value) bool { return len(v) == 0 || string(v) == "null" }

// setMember replaces the value of a member, or adds it.
func setMember(list []member, name string, v jsontext.Value) []member {
	for i := range list {
		if list[i].name == name {
			list[i].value = v
			return list
		}
	}
	return append(list, member{name, v})
}

func without(list []member, names ...string) []member {
	return slices.DeleteFunc(slices.Clone(list), func(m member) bool { return slices.Contains(names, m.name) })
}

func object(list []member) []byte {
	b := []byte{'{'}
	for i, m := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(append(b, '"'), m.name...), `":`...), m.value...)
	}
	return append(b, '}')
}

// elements of an array without white space; nil, false for any other value.
func elements(v jsontext.Value) (list []jsontext.Value, ok bool) {
	if v.Kind() != '[' {
		return nil, false
	}
	return list, json.Unmarshal(v, &list) == nil
}

func array(list []jsontext.Value) jsontext.Value {
	parts := functions.ConvertAll(list, func(v jsontext.Value) []byte { return v })
	return slices.Concat([]byte{'['}, bytes.Join(parts, []byte{','}), []byte{']'})
}

// concat adds an array to another.
func concat(a, b jsontext.Value) jsontext.Value {
	switch {
	case len(a) <= 2:
		return b
	case len(b) <= 2:
		return a
	}
	return slices.Concat(a[:len(a)-1], []byte{','}, b[1:])
}

// ended reports whether a choice has ended as one should.
func ended(choice []member) bool {
	switch string(value(choice, "finish_reason")) {
	case "", "null", `""`, `"error"`, `"abort"`:
		return false
	}
	return true
}

// wholePlain reports whether a plain answer is a success and whole.
func wholePlain(path string, v jsontext.Value) bool {
	if v.Kind() == '[' { // engines answer scores so
		f, _ := formOf(path)
		return !f.sampled
	}
	top := membersOf(v)
	if len(top) == 0 || !isNull(value(top, "error")) {
		return false
	}
	switch path {
	case pathChat, pathCompletions:
		choices, _ := elements(value(top, "choices"))
		return len(choices) > 0 && !slices.ContainsFunc(choices, func(c jsontext.Value) bool { return !ended(membersOf(c)) })
	case "/v1/responses":
		return string(value(top, "status")) == `"completed"`
	case "/v1/messages":
		return !isNull(value(top, "stop_reason"))
	}
	return true
}

// wholeEvents reports whether each choice of a stream has ended as one should.
func wholeEvents(chunks [][]byte) bool {
	over := map[string]bool{}
	for _, chunk := range chunks {
		top := membersOf(chunk)
		choices, ok := elements(value(top, "choices"))
		if !ok && len(value(top, "choices")) != len("null") || !isNull(value(top, "error")) {
			return false
		}
		for _, c := range choices {
			choice := membersOf(c)
			i := string(value(choice, "index"))
			over[i] = over[i] || ended(choice)
			if r := value(choice, "finish_reason"); !isNull(r) && !ended(choice) {
				return false
			}
		}
	}
	return len(over) > 0 && !slices.Contains(slices.Collect(maps.Values(over)), false)
}

// isNoop reports whether a chunk is one that a held stream got while it waited.
func isNoop(chunk []byte) bool {
	top := membersOf(chunk)
	if string(value(top, "id")) != `""` {
		return false
	}
	switch string(value(top, "choices")) {
	case `[{"index":0,"delta":{"content":""},"finish_reason":null}]`, `[{"index":0,"text":"","finish_reason":null}]`:
		return true
	}
	return false
}

// PlainOf returns the plain answer that the events of a stream make up; nil where it cannot
// be made, and where neither the end mark nor all its choices show that the stream is whole.
// Engines in Python may write numbers that JSON does not have, pieces of characters, and JSON
// in lines.
func PlainOf(path string, events []byte) []byte {
	if path != pathChat && path != pathCompletions {
		return openai.CollectWhole(path, events)
	}
	events = openai.SingleData(bytes.TrimPrefix(events, []byte("\ufeff")))
	if plain := collectEvents(path, events); plain != nil {
		return plain
	}
	events = bytes.ToValidUTF8(openai.JoinData(events), []byte("\ufffd"))
	return collectEvents(path, pythonjson.WithNulls(events))
}

func collectEvents(path string, events []byte) []byte {
	chunks, marked := readEvents(events)
	chunks, usage := takeUsage(chunks)
	if !marked && !wholeEvents(chunks) {
		return nil
	}
	return plainOf(path, chunks, usage, true)
}

// takeUsage takes the chunk that has the usage and no choices out of a stream. The usage of
// another chunk is only read.
func takeUsage(chunks [][]byte) (rest [][]byte, usage []byte) {
	for _, chunk := range chunks {
		top := membersOf(chunk)
		u := value(top, "usage")
		if !isNull(u) {
			usage = u
			if string(value(top, "choices")) == "[]" {
				continue
			}
		}
		rest = append(rest, chunk)
	}
	return rest, usage
}

// usageChunk is the chunk with the usage of a stream that begins with a chunk.
func usageChunk(first, usage []byte) []byte {
	var top []member
	for _, name := range [...]string{"id", "object", "created", "model"} {
		if v := value(membersOf(first), name); v != nil {
			top = append(top, member{name, v})
		}
	}
	return object(append(top, member{"choices", jsontext.Value("[]")}, member{"usage", usage}))
}

// eventsOf makes the chunks of a stream of a plain answer; nil where that cannot be done.
func eventsOf(path string, plain []byte) (chunks [][]byte) {
	top := membersOf(plain)
	choices, ok := elements(value(top, "choices"))
	if !ok {
		return nil
	}
	top = setMember(without(top, "usage"), "choices", nil)
	if path == pathChat {
		top = setMember(top, "object", jsontext.Value(`"chat.completion.chunk"`))
	}
	add := func(choice []member) {
		chunks = append(chunks, object(setMember(top, "choices", array([]jsontext.Value{object(choice)}))))
	}
	for _, c := range choices {
		choice := membersOf(c)
		if path == pathCompletions {
			add(choice)
			continue
		}
		delta, ok := deltaOf(value(choice, "message"))
		if !ok {
			return nil
		}
		first := []member{{"index", value(choice, "index")}, {"delta", delta}}
		if l := value(choice, "logprobs"); !isNull(l) {
			first = append(first, member{"logprobs", l})
		}
		add(append(first, member{"finish_reason", jsontext.Value("null")}))
		last := append([]member{{"index", value(choice, "index")}, {"delta", jsontext.Value("{}")}}, without(choice, "index", "message", "logprobs")...)
		add(last)
	}
	return chunks
}

// deltaOf is the delta that makes a whole message.
func deltaOf(message jsontext.Value) (jsontext.Value, bool) {
	var delta []member
	for _, m := range membersOf(message) {
		switch {
		case m.name == "tool_calls":
			calls, _ := elements(m.value)
			for i, c := range calls {
				call := append([]member{{"index", jsontext.Value(strconv.Itoa(i))}}, without(membersOf(c), "index")...)
				calls[i] = object(call)
			}
			if len(calls) > 0 {
				delta = append(delta, member{m.name, array(calls)})
			}
		case isNull(m.value) || string(m.value) == "[]":
		default:
			delta = append(delta, m)
		}
	}
	return object(delta), len(delta) > 0
}
