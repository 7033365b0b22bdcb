package openai

import (
	"strings"
	"testing"
)

// TestRenamer: the name of the model is replaced where answers have it, in whatever pieces
// they come, and nothing else is.
func TestRenamer(t *testing.T) {
	for _, c := range []struct {
		name      string
		events    bool
		body, out string
	}{
		{"first", false, `{"model":"v","id":1}`, `{"model":"NEW","id":1}`},
		{"last, with spaces", false, "{ \"id\" : \"model\" ,\n \"model\" :\t\"v\\\"w\\\\\" }\n", "{ \"id\" : \"model\" ,\n \"model\" :\t\"NEW\" }\n"},
		{"empty", false, `{"model":""}`, `{"model":"NEW"}`},
		{"escaped key", false, `{"mod\u0065l":"v"}`, `{"mod\u0065l":"NEW"}`},
		{"not in content", false, `{"choices":[{"message":{"model":"a","content":"{\"model\":\"b\"}"}}],"x":{"model":"c"},"model":"v"}`, `{"choices":[{"message":{"model":"a","content":"{\"model\":\"b\"}"}}],"x":{"model":"c"},"model":"NEW"}`},
		{"no string", false, `{"model":null,"a":"b","model":{"model":"v"},"model":["v"],"model":1}`, `{"model":null,"a":"b","model":{"model":"v"},"model":["v"],"model":1}`},
		{"value like the key", false, `{"a":"model","b":"model"}`, `{"a":"model","b":"model"}`},
		{"long key", false, `{"` + strings.Repeat("k", 100) + `":"v","model":"v"}`, `{"` + strings.Repeat("k", 100) + `":"v","model":"NEW"}`},
		{"keys about as long as may be", false, `{"` + strings.Repeat("k", 31) + `":1,"` + strings.Repeat("k", 32) + `":1,"` + strings.Repeat("k", 33) + `":1,"model":"v"}`, `{"` + strings.Repeat("k", 31) + `":1,"` + strings.Repeat("k", 32) + `":1,"` + strings.Repeat("k", 33) + `":1,"model":"NEW"}`},
		{"array", false, `[{"model":"v"}]`, `[{"model":"v"}]`},
		{"response", false, `{"type":"x","response":{"id":{"model":"a"},"model":"v"},"other":{"model":"v"}}`, `{"type":"x","response":{"id":{"model":"a"},"model":"NEW"},"other":{"model":"v"}}`},
		{"message", false, `{"message":{"model":"v"}}`, `{"message":{"model":"NEW"}}`},
		{"not JSON", false, `<a "model":"v">}}]`, `<a "model":"v">}}]`},
		{"events", true, ": {\"model\":\"v\"}\nevent: x\ndata: {\"model\":\"v\"}\r\n\r\ndata:{\"a\":1,\"model\":\"v\"}\n\ndata: [DONE]\n\n", ": {\"model\":\"v\"}\nevent: x\ndata: {\"model\":\"NEW\"}\r\n\r\ndata:{\"a\":1,\"model\":\"NEW\"}\n\ndata: [DONE]\n\n"},
		{"an event that is broken", true, "data: {\"model\":\"v\n\ndata: {\"model\":\"v\"}\n\n", "data: {\"model\":\"NEW\"\n\ndata: {\"model\":\"NEW\"}\n\n"},
		{"the end of a broken event", true, "data: {\"model\":\"v\n", "data: {\"model\":\"NEW\"\n"},
		{"more ends than begins", false, `}]}{"a":{"model":"v"}}[{"model":"v"}]`, `}]}{"a":{"model":"v"}}[{"model":"v"}]`},
		{"almost data", true, "dat: {\"model\":\"v\"}\ndatum\ndata{\"model\":\"v\"}\n", "dat: {\"model\":\"v\"}\ndatum\ndata{\"model\":\"v\"}\n"},
	} {
		for size := 1; size <= len(c.body); size++ {
			r := NewRenamer("NEW", c.events)
			var out []byte
			for p := c.body; p != ""; {
				n := min(size, len(p))
				out, p = r.Append(out, []byte(p[:n])), p[n:]
			}
			if string(out) != c.out {
				t.Errorf("%s, in pieces of %d:\n%s\nwant\n%s", c.name, size, out, c.out)
				break
			}
		}
	}
	if got := string(NewRenamer(`a"b`, false).Append(nil, []byte(`{"model":"v"}`))); got != `{"model":"a\"b"}` {
		t.Error(got)
	}
}

func BenchmarkRenamer(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1767225600,"model":"vendor-model-2026-01-01","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	r := NewRenamer("cloud", true)
	var out []byte
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		out = r.Append(out[:0], chunk)
	}
}
