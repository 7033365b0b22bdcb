package cache

import (
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

func keyIn(t *testing.T, path, body string, c *functions.ExactCache) ([32]byte, string) {
	t.Helper()
	f, ok := formOf(path)
	if !ok {
		t.Fatalf("%s has no answers to keep", path)
	}
	k := scope{team: "a", function: functions.Name{Team: "a", Name: "m"}, path: path}
	want, wantReason := keyOf(k, f, []byte(body), c)
	for _, hashed := range []Body{{}, BodyOf([]byte(body))} { // the second time, its bytes are known
		q := &Request{Body: []byte(body), Hashed: hashed}
		if key, reason := known.keyOf(k, f, q, c); reason != wantReason || reason == "" && key != want {
			t.Errorf("%s: reason %q, want %q; the same key: %v", body, reason, wantReason, key == want)
		}
	}
	return want, wantReason
}

// known are the bodies of all tests.
var known spellings

// TestSpellings: a key is known again by all that it depends on.
func TestSpellings(t *testing.T) {
	k, c := scope{team: "a", path: pathChat}, &functions.ExactCache{}
	body := []byte(`{"temperature":0}`)
	one, other := spelling{k, c, BodyOf(body)}, spelling{k, c, BodyOf(body[1:])}
	other.body.hashes[0] = one.body.hashes[0] + 1024 // in the same slot
	var s spellings
	s.put(&one, [32]byte{7})
	for i, of := range []spelling{
		{k, c, BodyOf([]byte(`{"temperature":1}`))}, {scope{team: "b", path: pathChat}, c, BodyOf(body)}, {k, &functions.ExactCache{AnyTemperature: true}, BodyOf(body)}, other,
	} {
		if _, ok := s.get(&of); ok {
			t.Errorf("%d has the key of another", i)
		}
	}
	if key, ok := s.get(&one); !ok || key[0] != 7 {
		t.Error(key, ok)
	}
	s.put(&other, [32]byte{8})
	if _, ok := s.get(&one); ok {
		t.Error("one slot has two keys")
	}
}

// TestSameKey: bodies that mean the same to an engine have one key, and all that may
// change an answer makes another.
func TestSameKey(t *testing.T) {
	const base = `{"model":"m","temperature":0,"messages":[{"role":"user","content":"a\"b\\"}],"seed":9007199254740993}`
	own, reason := keyIn(t, pathChat, base, &functions.ExactCache{})
	if reason != "" {
		t.Fatal(reason)
	}
	for _, c := range []struct {
		body string
		same bool
	}{
		{` { "temperature" : 0 , "seed":9007199254740993,"messages":[ {"content":"a\u0022b\u005c","role":"user"}],"model":"other"}`, true},
		{strings.Replace(base, `"model":"m"`, `"model":"m","stream":true,"stream_options":{"include_usage":true},"user":"u","metadata":{"a":"b"}`, 1), true},
		{strings.Replace(base, `0993`, `0992`, 1), false},
		{strings.Replace(base, `"temperature":0`, `"temperature":0.0`, 1), false},
		{strings.Replace(base, `a\"b`, `a\"B`, 1), false},
		{strings.Replace(base, `"seed"`, `"max_tokens":1,"seed"`, 1), false},
		{strings.Replace(base, `"user"`, `"system"`, 1), false},
	} {
		key, reason := keyIn(t, pathChat, c.body, &functions.ExactCache{})
		if reason != "" || (key == own) != c.same {
			t.Errorf("%s: same is %v, reason %q", c.body, key == own, reason)
		}
	}
	// What separates members cannot be part of a name.
	a, _ := keyIn(t, "/tokenize", `{"a":1,"b":2}`, &functions.ExactCache{})
	b, _ := keyIn(t, "/tokenize", `{"a\":1,\"b":2}`, &functions.ExactCache{})
	if a == b {
		t.Error("a name that holds a quote has the key of two members")
	}
}

// TestScope: every part of the scope makes a key of its own.
func TestScope(t *testing.T) {
	base := scope{team: "a", key: "k", function: functions.Name{Team: "a", Name: "m"}, adapter: "x", path: pathChat}
	f, _ := formOf(pathChat)
	body := []byte(`{"temperature":0}`)
	seen := map[[32]byte]bool{}
	for i, change := range []func(*scope){
		func(*scope) {}, func(s *scope) { s.team = "b" }, func(s *scope) { s.key = "" }, func(s *scope) { s.team, s.key = "ak", "" },
		func(s *scope) { s.function.Name = "n" }, func(s *scope) { s.function.Team = "b" }, func(s *scope) { s.adapter = "" },
		func(s *scope) { s.path = pathCompletions }, func(s *scope) { s.version[0] = 1 },
	} {
		k := base
		change(&k)
		key, reason := known.keyOf(k, f, &Request{Body: body}, &functions.ExactCache{})
		if reason != "" || seen[key] {
			t.Errorf("change %d: reason %q, or the key of another scope", i, reason)
		}
		seen[key] = true
	}
}

func TestReasons(t *testing.T) {
	zero := func(more string) string { return `{"temperature":0,` + more + `}` }
	image := zero(`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]`)
	for _, c := range []struct {
		path, body string
		also       string // words; with "any", answers of any temperature
		reason     string
	}{
		{pathChat, `{"messages":[]}`, "", byTemperature},
		{pathChat, `{"temperature":null,"messages":[]}`, "", byTemperature},
		{pathChat, `{"temperature":0.1,"messages":[]}`, "", byTemperature},
		{pathChat, `{"temperature":1e-9}`, "", byTemperature},
		{pathChat, `{"messages":[{"role":"user","content":"\"temperature\":0"}]}`, "", byTemperature},
		{pathChat, `{"messages":[{"temperature":0}]}`, "", byTemperature},
		{pathChat, `{"messages":[]}`, "any", ""},
		{pathChat, `{"temperature":1}`, "any", ""},
		{pathChat, zero(`"top_p":1`), "", ""},
		{pathChat, `{"temperature":0.0}`, "", ""},
		{pathChat, `{"temperature":-0}`, "", ""},
		{"/v1/messages", `{"messages":[]}`, "", byTemperature},
		{"/v1/embeddings", `{"input":"a"}`, "", ""},
		{"/v1/rerank", `{"query":"a","documents":["b"]}`, "", ""},
		{pathChat, zero(`"tools":[{"type":"function"}]`), "", byTools},
		{pathChat, zero(`"functions":[{"name":"f"}]`), "", byTools},
		{pathChat, zero(`"tools":[]`), "", ""},
		{pathChat, zero(`"tools":null`), "", ""},
		{pathChat, zero(`"tools":[{"type":"function"}]`), "tools", ""},
		{pathChat, zero(`"tools":[{"type":"function"}]`), "images n", byTools},
		{pathChat, zero(`"n":2`), "", byN},
		{pathChat, zero(`"n":1`), "", ""},
		{pathChat, zero(`"n":2`), "n", ""},
		{pathChat, image, "", byImages},
		{pathChat, image, "images", ""},
		{pathChat, zero(`"messages":[{"role":"user","content":"an image_url"}]`), "", ""},
		{pathChat, zero(`"modalities":["text","audio"],"audio":{"voice":"a"}`), "", byImages},
		{"/v1/responses", zero(`"input":"a","previous_response_id":"resp_1"`), "", byState},
		{"/v1/responses", zero(`"input":"a","background":true`), "", byState},
		{"/v1/responses", zero(`"input":"a","store":false,"previous_response_id":null`), "", ""},
		{"/v1/responses", zero(`"input":"a"`), "", byState},
		{"/v1/responses", zero(`"input":"a","store":null`), "", byState},
		{"/v1/responses", zero(`"prompt":{"id":"pmpt_1"},"store":false`), "", byState},
		{pathChat, zero(`"store":true`), "", byState},
		{pathChat, zero(`"store":false`), "", ""},
		{pathCompletions, zero(`"prompt":["a"]`), "", ""},
		{pathChat, zero(`"web_search_options":{}`), "", byTools},
		{pathChat, zero(`"plugins":[{"id":"web"}]`), "", byTools},
		{"/v1/messages", zero(`"mcp_servers":[{"url":"u"}]`), "", byTools},
		{"/v1/messages", zero(`"container":"c"`), "", byState},
		{pathChat, zero(`"stream":true,"stream_options":{"include_usage":true}`), "", ""},
		{pathChat, zero(`"stream":true,"stream_options":{"continuous_usage_stats":true}`), "", byForm},
		{pathChat, zero(`"a":{"b":1,"b":2}`), "", byBody},
	} {
		f := strings.Fields(c.also)
		_, reason := keyIn(t, c.path, c.body, &functions.ExactCache{AnyTemperature: slices.Contains(f, "any"), Also: f})
		if reason != c.reason {
			t.Errorf("%s %s with %q: reason %q, want %q", c.path, c.body, c.also, reason, c.reason)
		}
	}
	for _, path := range []string{"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/models"} {
		if _, ok := formOf(path); ok {
			t.Errorf("answers of %s are kept", path)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add(`{"temperature":0,"messages":[{"role":"user","content":"a\\\"b"}]}`)
	f.Add(`{"":{"\\":[{}]},"a":""}`)
	f.Fuzz(func(t *testing.T, body string) {
		form, _ := formOf(pathChat)
		k := scope{path: pathChat}
		one, _ := keyOf(k, form, []byte(body), &functions.ExactCache{AnyTemperature: true})
		two, _ := keyOf(k, form, []byte(" "+body), &functions.ExactCache{AnyTemperature: true})
		if one != two {
			t.Error("a space makes another key")
		}
	})
}
