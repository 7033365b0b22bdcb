package collect

import (
	"bytes"
	"encoding/json/jsontext"
	"maps"
	"strconv"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// Stream returns the event stream that carries a whole JSON answer of an endpoint, for
// an engine that does not stream; nil where the answer is no JSON object. usage asks for the
// chunk with the usage of a chat or completion.
func Stream(path string, body []byte, usage bool) []byte {
	var answer object
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	if decodeInto(&answer, body) != nil && decodeInto(&answer, pythonjson.WithNulls(body)) != nil || answer == nil {
		return nil
	}
	b := make([]byte, 0, len(body)+512)
	switch path {
	case "/v1/responses":
		if answer["output"] == nil && answer["status"] == nil {
			return nil
		}
		return streamResponse(b, answer)
	case "/v1/messages":
		if answer["content"] == nil {
			return nil
		}
		return streamMessage(b, answer)
	}
	tokens := answer["usage"]
	delete(answer, "usage")
	var choices []object
	if decodeInto(&choices, answer["choices"]) == nil && path == "/v1/chat/completions" {
		answer["object"] = jsontext.Value(`"chat.completion.chunk"`)
		for _, c := range choices {
			if message, ok := c["message"]; ok {
				delete(c, "message")
				c["delta"] = numberToolCalls(message)
			}
		}
		answer["choices"] = toJSON(choices)
	}
	b = appendEvent(b, "", answer)
	if usage && tokens != nil && string(tokens) != "null" {
		answer["choices"], answer["usage"] = jsontext.Value("[]"), tokens
		b = appendEvent(b, "", answer)
	}
	return append(b, openai.Done...)
}

// numberToolCalls gives each tool call of a message the index that deltas have.
func numberToolCalls(message jsontext.Value) jsontext.Value {
	var m object
	var calls []object
	if decodeInto(&m, message) != nil || decodeInto(&calls, m["tool_calls"]) != nil || len(calls) == 0 {
		return message
	}
	for i, call := range calls {
		if call != nil && call["index"] == nil {
			call["index"] = jsontext.Value(strconv.Itoa(i))
		}
	}
	m["tool_calls"] = toJSON(calls)
	return toJSON(m)
}

func streamMessage(b []byte, answer object) []byte {
	begun := clone(answer, "content", "[]", "stop_reason", "null", "stop_sequence", "null")
	b = appendEvent(b, "message_start", object{"message": toJSON(begun)})
	var blocks []object
	decodeInto(&blocks, answer["content"])
	for i, block := range blocks {
		index := jsontext.Value(strconv.Itoa(i))
		var deltas []object
		begun := block
		switch string(block["type"]) {
		case `"text"`:
			begun = clone(block, "text", `""`)
			deltas = append(deltas, object{"type": toJSON("text_delta"), "text": block["text"]})
		case `"thinking"`:
			begun = clone(block, "thinking", `""`, "signature", `""`)
			deltas = append(deltas, object{"type": toJSON("thinking_delta"), "thinking": block["thinking"]})
			if s := block["signature"]; s != nil {
				deltas = append(deltas, object{"type": toJSON("signature_delta"), "signature": s})
			}
		case `"tool_use"`:
			begun = clone(block, "input", "{}")
			deltas = append(deltas, object{"type": toJSON("input_json_delta"), "partial_json": toJSON(string(block["input"]))})
		}
		b = appendEvent(b, "content_block_start", object{"index": index, "content_block": toJSON(begun)})
		for _, d := range deltas {
			b = appendEvent(b, "content_block_delta", object{"index": index, "delta": toJSON(d)})
		}
		b = appendEvent(b, "content_block_stop", object{"index": index})
	}
	end := object{"delta": toJSON(object{"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]})}
	if answer["usage"] != nil {
		end["usage"] = answer["usage"]
	}
	return appendEvent(appendEvent(b, "message_delta", end), "message_stop", object{})
}

func streamResponse(b []byte, answer object) []byte {
	n := 0
	add := func(name string, members object) {
		members["sequence_number"] = jsontext.Value(strconv.Itoa(n))
		b = appendEvent(b, name, members)
		n++
	}
	begun := clone(answer, "output", "[]", "status", `"in_progress"`, "usage", "null")
	add("response.created", object{"response": toJSON(begun)})
	var items []object
	decodeInto(&items, answer["output"])
	for i, item := range items {
		output := jsontext.Value(strconv.Itoa(i))
		var parts []object
		decodeInto(&parts, item["content"])
		begun := item
		if parts != nil {
			begun = clone(item, "content", "[]")
		}
		add("response.output_item.added", object{"output_index": output, "item": toJSON(begun)})
		for j, part := range parts {
			if string(part["type"]) != `"output_text"` {
				continue
			}
			place := func(name string, value jsontext.Value) object {
				return object{"item_id": item["id"], "output_index": output, "content_index": jsontext.Value(strconv.Itoa(j)), name: value}
			}
			add("response.content_part.added", place("part", toJSON(clone(part, "text", `""`))))
			add("response.output_text.delta", place("delta", part["text"]))
			add("response.output_text.done", place("text", part["text"]))
			add("response.content_part.done", place("part", toJSON(part)))
		}
		add("response.output_item.done", object{"output_index": output, "item": toJSON(item)})
	}
	end := "response.completed"
	switch string(answer["status"]) {
	case `"incomplete"`:
		end = "response.incomplete"
	case `"failed"`:
		end = "response.failed"
	}
	add(end, object{"response": toJSON(answer)})
	return b
}

// clone returns a copy of o with other values for the given members.
func clone(o object, members ...string) object {
	c := make(object, len(o)+len(members)/2)
	maps.Copy(c, o)
	for i := 0; i+1 < len(members); i += 2 {
		c[members[i]] = jsontext.Value(members[i+1])
	}
	return c
}

// appendEvent appends an event in one data line. A name is also the type of the object.
func appendEvent(b []byte, name string, members object) []byte {
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
		members["type"] = toJSON(name)
	}
	return append(append(append(b, "data: "...), toJSON(members)...), "\n\n"...)
}
