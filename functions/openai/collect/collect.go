// Package collect makes a stream of a whole answer, and assembles the whole answer (as if not
// streamed) from the events of a stream of OpenAI's responses endpoint or Anthropic's messages
// endpoint; package cache does so for chats and completions.
package collect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// object is a JSON object whose values stay as they are.
type object map[string]jsontext.Value

func decodeInto(to any, b []byte) error { return json.Unmarshal(b, to, openai.Tolerant) }

// toJSON encodes what was decoded from JSON, which cannot fail.
func toJSON(v any) jsontext.Value {
	b, _ := json.Marshal(v, openai.Tolerant)
	return b
}

// Plain returns the plain answer of the responses or messages endpoint that the events
// of a stream make up; nil where they make up none.
func Plain(path string, events []byte) []byte {
	var all []object
	for line := range bytes.Lines(openai.JoinData(bytes.TrimPrefix(events, []byte("\ufeff")))) {
		data, isData := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
		if data = bytes.TrimSpace(data); !isData || len(data) == 0 || data[0] != '{' {
			continue // a comment, the name of an event, the end mark
		}
		var event object
		if decodeInto(&event, data) != nil && decodeInto(&event, pythonjson.WithNulls(data)) != nil {
			return nil
		}
		all = append(all, event)
	}
	if path == "/v1/messages" {
		return collectMessage(all)
	}
	return collectResponse(all)
}

// collectResponse returns the response of the last event that has one. Some engines leave out
// there what other events have brought.
func collectResponse(all []object) []byte {
	var answer object
	var end string
	var items []jsontext.Value
	for _, event := range all {
		switch kind := stringOf(event["type"]); kind {
		case "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.done", "response.failed":
			if decodeInto(&answer, event["response"]) != nil {
				return nil
			}
			end = kind
		case "response.output_item.done":
			items = append(items, event["item"])
		}
	}
	if answer == nil {
		return nil
	}
	if output := answer["output"]; len(items) > 0 && (output == nil || string(output) == "null" || string(output) == "[]") {
		answer["output"] = toJSON(items)
	}
	switch status := stringOf(answer["status"]); {
	case status != "" && status != "in_progress" && status != "queued":
	case end == "response.incomplete", end == "response.failed":
		answer["status"] = toJSON(strings.TrimPrefix(end, "response."))
	case end == "response.completed", len(items) > 0:
		answer["status"] = toJSON("completed")
	default:
		return nil
	}
	return toJSON(answer)
}

// collectMessage puts a message together from its blocks and their deltas.
func collectMessage(all []object) []byte {
	var message, usage object
	blocks := map[int]*messageBlock{}
	for _, event := range all {
		index, _ := strconv.Atoi(string(event["index"]))
		switch stringOf(event["type"]) {
		case "message_start":
			if decodeInto(&message, event["message"]) != nil {
				return nil
			}
			decodeInto(&usage, message["usage"])
		case "content_block_start":
			b := &messageBlock{}
			if decodeInto(&b.members, event["content_block"]) != nil {
				return nil
			}
			blocks[index] = b
		case "content_block_delta":
			var delta object
			if b := blocks[index]; b == nil || decodeInto(&delta, event["delta"]) != nil {
				return nil
			} else {
				b.add(delta)
			}
		case "message_delta":
			var delta, more object
			decodeInto(&delta, event["delta"])
			decodeInto(&more, event["usage"])
			message = overlay(message, delta)
			usage = overlay(usage, more)
		}
	}
	if message == nil {
		return nil
	}
	content := make([]jsontext.Value, 0, len(blocks))
	for _, i := range slices.Sorted(maps.Keys(blocks)) {
		content = append(content, blocks[i].toJSON())
	}
	message["content"] = toJSON(content)
	if usage != nil {
		message["usage"] = toJSON(usage)
	}
	return toJSON(message)
}

// messageBlock is a content block of a message, and what its deltas add.
type messageBlock struct {
	members   object
	input     []byte // parts of the input of a tool
	citations []jsontext.Value
}

func (b *messageBlock) add(delta object) {
	for name, value := range delta {
		switch name {
		case "type":
		case "partial_json":
			b.input = append(b.input, stringOf(value)...)
		case "citation":
			b.citations = append(b.citations, value)
		default: // text, thinking, signature
			b.members[name] = toJSON(stringOf(b.members[name]) + stringOf(value))
		}
	}
}

func (b *messageBlock) toJSON() jsontext.Value {
	if input := jsontext.Value(b.input); len(b.input) > 0 && input.IsValid() {
		b.members["input"] = input
	} else if len(b.input) > 0 { // no JSON: the client sees what the model wrote
		b.members["input"] = toJSON(string(b.input))
	}
	if len(b.citations) > 0 {
		b.members["citations"] = toJSON(b.citations)
	}
	return toJSON(b.members)
}

// overlay returns o with the members of more that are not null.
func overlay(o, more object) object {
	for name, value := range more {
		if string(value) != "null" {
			if o == nil {
				o = object{}
			}
			o[name] = value
		}
	}
	return o
}

// stringOf is a JSON string decoded; "" for any other value.
func stringOf(v jsontext.Value) (s string) {
	decodeInto(&s, v)
	return s
}
