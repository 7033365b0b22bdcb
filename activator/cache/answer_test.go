package cache

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/openai"
)

const chatEvents = `: thaw state=staging

data: {"id":"","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}

data: {"id":"chatcmpl-abc", "object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"Hel\"lo"},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":" wörld"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}

data: [DONE]

`

const chatPlain = `{"id":"chatcmpl-abc","object":"chat.completion","created":7,"model":"m",
 "choices":[{"index":0,"message":{"role":"assistant","content":"Hel\"lo wörld","tool_calls":[]},"logprobs":null,"finish_reason":"stop","stop_reason":null}],
 "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`

var used = openai.Usage{Prompt: 3, Completion: 2, Known: true}

func mustKeep(t *testing.T, path, body string, events bool) *answer {
	t.Helper()
	a := newAnswer(path, []byte(body), events, used)
	if a == nil {
		t.Fatalf("not kept: %s", body)
	}
	return a
}

func replayed(t *testing.T, a *answer, events, usage bool) string {
	t.Helper()
	x := a.in(events, usage)
	if x == nil {
		t.Fatalf("no answer in the form events=%v usage=%v", events, usage)
	}
	return string(x.body("my", events, usage))
}

// equalJSON compares values, not spelling.
func equalJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

func TestReplay(t *testing.T) {
	a := mustKeep(t, pathChat, chatEvents, true)
	stream := replayed(t, a, true, false)
	if strings.Contains(stream, "thaw") || strings.Contains(stream, `"id":""`) || strings.Count(stream, `"id":"chatcmpl-my"`) != 3 || !strings.HasSuffix(stream, "}\n\ndata: [DONE]\n\n") || strings.Contains(stream, "usage") {
		t.Errorf("a stream as a stream: %s", stream)
	}
	if s := replayed(t, a, true, true); !strings.HasSuffix(s, `data: {"id":"chatcmpl-my","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`+"\n\ndata: [DONE]\n\n") {
		t.Errorf("with usage: %s", s)
	}
	want := strings.Replace(strings.Replace(chatPlain, "abc", "my", 1), `,"tool_calls":[]`, "", 1)
	if p := replayed(t, a, false, false); !equalJSON(p, want) {
		t.Errorf("a stream as a plain answer: %s", p)
	}

	b := mustKeep(t, pathChat, chatPlain, false)
	if p := replayed(t, b, false, false); !equalJSON(p, strings.Replace(chatPlain, "abc", "my", 1)) {
		t.Errorf("a plain answer: %s", p)
	}
	again := newAnswer(pathChat, []byte(replayed(t, b, true, true)), true, openai.Usage{})
	if again == nil {
		t.Fatalf("a plain answer as a stream is none: %s", replayed(t, b, true, true))
	}
	if p := string(again.in(false, false).body("my", false, false)); !equalJSON(p, want) {
		t.Errorf("a plain answer as a stream and back: %s", p)
	}
}

// TestBothForms: what a stream and a plain answer hold survives the change of form and back.
func TestBothForms(t *testing.T) {
	for name, c := range map[string]struct{ path, plain string }{
		"tools":       {pathChat, `{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`},
		"reasoning":   {pathChat, `{"id":"x","object":"chat.completion","created":7,"model":"m","system_fingerprint":"fp","choices":[{"index":0,"message":{"role":"assistant","reasoning_content":"hm","content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[]}]},"finish_reason":"length"},{"index":1,"message":{"role":"assistant","content":"b"},"logprobs":null,"finish_reason":"stop"}],"usage":{"total_tokens":5}}`},
		"sound":       {pathChat, `{"id":"x","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"audio":{"id":"audio_1","data":"AAECAw==","transcript":"hi","expires_at":17}},"logprobs":null,"finish_reason":"stop"}],"usage":{"total_tokens":5}}`},
		"a function":  {pathChat, `{"id":"x","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},"logprobs":null,"finish_reason":"function_call"}],"usage":{"total_tokens":5}}`},
		"completions": {pathCompletions, `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"a\nb","logprobs":{"tokens":["a"],"token_logprobs":[-1.5],"top_logprobs":null,"text_offset":[0]},"finish_reason":"stop"}],"usage":{"total_tokens":5}}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := mustKeep(t, c.path, c.plain, false)
			stream := replayed(t, a, true, true)
			b := mustKeep(t, c.path, stream, true)
			got := replayed(t, b, false, false)
			if want := string(a.in(false, false).body("my", false, false)); !equalJSON(got, want) {
				t.Errorf("%s\nwas\n%s\nas a stream\n%s", got, want, stream)
			}
		})
	}
}

// TestPlainOfParts: sound and the older form of a tool's call, which come in parts, are whole in
// the plain answer.
func TestPlainOfParts(t *testing.T) {
	sounds := func(data ...string) []string {
		deltas := []string{`"role":"assistant","content":null`, `"audio":{"id":"audio_1","transcript":"Hel"}`, `"audio":null`, `"audio":{"transcript":"lo"}`}
		for _, d := range data {
			deltas = append(deltas, `"audio":{"data":"`+d+`"}`)
		}
		return append(deltas, `"audio":{"expires_at":17}`)
	}
	heard := func(data string) string {
		return `{"role":"assistant","content":null,"audio":{"id":"audio_1","transcript":"Hello","data":"` + data + `","expires_at":17}}`
	}
	for name, c := range map[string]struct {
		deltas []string
		want   string
	}{
		"sound":                      {sounds("AAEC", "AwQF"), heard("AAECAwQF")},
		"sound in padded parts":      {sounds("AA==", "AQI=", "AwQF"), heard("AAECAwQF")},
		"sound, cut anywhere":        {sounds("AAEC", "Aw", "QFBg=="), heard("AAECAwQFBg==")},
		"sound without a part":       {[]string{`"content":"","audio":{}`}, `{"role":"assistant","content":"","audio":{}}`},
		"a call of a function":       {[]string{`"role":"assistant","content":"","function_call":{"name":"f","arguments":""}`, `"function_call":{"arguments":"{\"a\""}`, `"function_call":null`, `"function_call":{"arguments":":1}"}`}, `{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\":1}"}}`},
		"no call of a function":      {[]string{`"content":"a","function_call":null,"audio":null`}, `{"role":"assistant","content":"a"}`},
		"members of an engine's own": {[]string{`"thinking":"h","reasoning_details":[{"text":"a"}],"name":"x","images":[]`, `"thinking":"m","reasoning_details":[{"text":"b"}],"name":"x","content":"c"`}, `{"role":"assistant","content":"c","thinking":"hm","reasoning_details":[{"text":"a"},{"text":"b"}],"name":"x"}`},
		"content in parts":           {[]string{`"content":[{"type":"thinking","thinking":"h"}]`, `"content":[{"type":"text","text":"a"}]`, `"content":"b"`}, `{"role":"assistant","content":[{"type":"thinking","thinking":"h"},{"type":"text","text":"a"},{"type":"text","text":"b"}]}`},
		"arguments as an object":     {[]string{`"tool_calls":[{"index":"0","id":"t","function":{"name":"f","arguments":{"a":1}}}]`}, `{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}`},
		"calls of the same index": {[]string{
			`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"c\":1}"}}]`,
			`"tool_calls":[{"index":0,"id":"b","function":{"name":"f","arguments":""}}]`, `"tool_calls":[{"index":0,"function":{"arguments":"{\"c\":"}}]`,
			`"tool_calls":[{"index":0,"id":"c","function":{"name":null,"arguments":"2}"}}]`,
		}, `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"c\":1}"}},{"id":"c","type":"function","function":{"name":"f","arguments":"{\"c\":2}"}}]}`},
		"the message so far beside": {[]string{`"role":"assistant","content":""},"message":{"content":""`, `"content":"one "},"message":{"content":"one "`, `"content":"two"},"message":{"content":"one two"`, `},"message":{"role":"assistant","content":"one two"`}, `{"role":"assistant","content":"one two"}`},
		"a call that is no object":  {[]string{`"function_call":"f"`}, ""},
		"a call without a name":     {[]string{`"function_call":{"name":1}`}, ""},
		"sound that is no object":   {[]string{`"audio":"AAEC"`}, ""},
		"sound that is no text":     {[]string{`"audio":{"data":[1]}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var events strings.Builder
			for i, d := range c.deltas {
				reason := "null"
				if i == len(c.deltas)-1 {
					reason = `"stop"`
				}
				fmt.Fprintf(&events, `data: {"id":"a","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}`+"\n\n", d, reason)
			}
			want := ""
			if c.want != "" {
				want = `{"id":"a","choices":[{"index":0,"message":` + c.want + `,"logprobs":null,"finish_reason":"stop"}]}`
			}
			if got := string(PlainOf(pathChat, []byte(events.String()+"data: [DONE]\n\n"))); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
		})
	}
}

// TestWholeMessageInAnEvent: some engines send the message of a plain answer as the only event,
// and a mark of the byte order before it.
func TestWholeMessageInAnEvent(t *testing.T) {
	event := `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`
	want := `{"id":"a","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"logprobs":null,"finish_reason":"stop"}]}`
	for _, mark := range []string{"", "\ufeff"} {
		if got := string(PlainOf(pathChat, []byte(mark+"data: "+event+"\n\ndata: [DONE]\n\n"))); got != want {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	}
}

// TestNotKept: an answer that is not whole, or no success, is not kept.
func TestNotKept(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		events     bool
	}{
		"half a plain answer":   {pathChat, chatPlain[:len(chatPlain)-1], false},
		"nothing":               {pathChat, "", false},
		"an error":              {pathChat, `{"error":{"message":"no"}}`, false},
		"no choices":            {pathChat, `{"id":"a","choices":[]}`, false},
		"no reason":             {pathChat, strings.Replace(chatPlain, `"finish_reason":"stop"`, `"finish_reason":null`, 1), false},
		"aborted":               {pathChat, strings.Replace(chatPlain, `"finish_reason":"stop"`, `"finish_reason":"abort"`, 1), false},
		"two values":            {pathChat, chatPlain + "{}", false},
		"no end mark":           {pathChat, strings.TrimSuffix(chatEvents, "data: [DONE]\n\n"), true},
		"an error frame":        {pathChat, strings.Replace(chatEvents, "data: [DONE]", "data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]", 1), true},
		"a named event":         {pathChat, "event: error\n" + chatEvents, true},
		"a stream that is cut":  {pathChat, strings.Replace(chatEvents, `"finish_reason":"stop"`, `"finish_reason":null`, 1), true},
		"garbage in a stream":   {pathChat, strings.Replace(chatEvents, "data: [DONE]", "data: {\n\ndata: [DONE]", 1), true},
		"only an end mark":      {pathChat, "data: [DONE]\n\n", true},
		"behind the end mark":   {pathChat, chatEvents + "data: {}\n\n", true},
		"a response that waits": {"/v1/responses", `{"id":"resp_1","status":"in_progress"}`, false},
		"a message that is cut": {"/v1/messages", `{"id":"msg_1","stop_reason":null}`, false},
		"embeddings failed":     {"/v1/embeddings", `{"error":"x"}`, false},
		"no JSON":               {"/v1/embeddings", `<html>`, false},
		"a text":                {"/v1/embeddings", `"x"`, false},
	} {
		if newAnswer(c.path, []byte(c.body), c.events, used) != nil {
			t.Errorf("%s is kept", name)
		}
	}
	unknown := newAnswer(pathChat, []byte(chatEvents), true, openai.Usage{})
	if unknown.in(true, true) != nil || unknown.in(false, false) != nil || unknown.in(true, false) == nil {
		t.Error("an answer whose tokens are not known is given with its tokens")
	}
	strange := newAnswer(pathChat, []byte(strings.Replace(chatEvents, `"content":""},"logprobs"`, `"pictures":{"id":"a"}},"logprobs"`, 1)), true, used)
	if strange.in(false, false) != nil || strange.in(true, false) == nil {
		t.Error("a part of a stream whose place in a plain answer is not known is lost")
	}
}
