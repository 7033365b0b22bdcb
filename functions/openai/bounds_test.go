package openai

import (
	"errors"
	"strings"
	"testing"
)

// tooMany is n copies of s with commas between.
func tooMany(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }

// Each row is a request that must never reach an engine; those named for an
// advisory are what it was about.
func TestBounds(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 20) + `{}` + strings.Repeat(`}}`, 20)
	for _, x := range []struct {
		name, more string
		code       Code
		param      string
	}{
		{"n (CVE-2026-34756)", `"n":100000`, InvalidValue, "/n"},
		{"n just above", `"n":9`, InvalidValue, "/n"},
		{"n just above, as a float", `"n":9.0`, InvalidValue, "/n"},
		{"n beyond every integer", `"n":1e300`, InvalidValue, "/n"},
		{"n of another spelling", `"\u006e":9`, InvalidValue, "/n"},
		{"best_of", `"best_of":64`, InvalidValue, "/best_of"},
		{"best_of fraction", `"best_of":1.5`, InvalidValue, "/best_of"},
		{"logprobs", `"logprobs":1000`, InvalidValue, "/logprobs"},
		{"logprobs string", `"logprobs":"5"`, InvalidValue, "/logprobs"},
		{"top_logprobs", `"top_logprobs":21`, InvalidValue, "/top_logprobs"},
		{"prompt_logprobs", `"prompt_logprobs":200`, InvalidValue, "/prompt_logprobs"},
		{"prompt_logprobs, the whole vocabulary", `"prompt_logprobs":-1`, InvalidValue, "/prompt_logprobs"},
		{"max_tokens negative", `"max_tokens":-5`, InvalidValue, "max_tokens"},
		{"max_completion_tokens negative", `"max_completion_tokens":-2`, InvalidValue, "max_completion_tokens"},
		{"min_tokens negative", `"min_tokens":-1`, InvalidValue, "/min_tokens"},
		{"logit_bias large", `"logit_bias":{` + tooMany(301, `"1":1`) + `}`, InvalidValue, "/logit_bias"},
		{"logit_bias no object", `"logit_bias":[1]`, InvalidValue, "/logit_bias"},
		{"stop many", `"stop":[` + tooMany(17, `"a"`) + `]`, InvalidValue, "/stop"},
		{"stop long", `"stop":"` + strings.Repeat("a", 5000) + `"`, InvalidValue, "/stop"},
		{"stop number", `"stop":1`, InvalidValue, "/stop"},
		{"stop_token_ids", `"stop_token_ids":[` + tooMany(1025, "1") + `]`, InvalidValue, "/stop_token_ids"},
		{"bad_words", `"bad_words":[` + tooMany(1025, `"a"`) + `]`, InvalidValue, "/bad_words"},
		{"allowed_token_ids", `"allowed_token_ids":"all"`, InvalidValue, "/allowed_token_ids"},
		{"response_format large", `"response_format":{"a":"` + strings.Repeat("a", 65<<10) + `"}`, InvalidValue, "/response_format"},
		{"response_format deep", `"response_format":` + deep, InvalidValue, "/response_format"},
		{"structured_outputs deep (CVE-2026-105757)", `"structured_outputs":{"json":` + deep + `}`, InvalidValue, "/structured_outputs"},
		{"structured_outputs regex (CVE-2026-55574)", `"structured_outputs":{"regex":"(a+)+(?=b)"}`, InvalidValue, "/structured_outputs"},
		{"a regex that unfolds", `"structured_outputs":{"regex":"((a{1,1000}){1,1000}){1,1000}"}`, InvalidValue, "/structured_outputs"},
		{"a long regex", `"structured_outputs":{"regex":"` + strings.Repeat("a", 513) + `"}`, InvalidValue, "/structured_outputs"},
		{"a regex twice, the second bad", `"structured_outputs":{"regex":"a","r\u0065gex":"(?=b)"}`, InvalidValue, "/structured_outputs"},
		{"a pattern in a schema", `"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"(a)\\1"}}}`, InvalidValue, "/response_format"},
		{"tools deep", `"tools":[` + deep + `]`, InvalidValue, "/tools"},
		{"tools deep behind another fault", `"tools":[{"maxLength":-1},` + deep + `]`, InvalidValue, "/tools"},
		{"guided_regex", `"guided_regex":"("`, InvalidValue, "/guided_regex"},
		{"guided_json large", `"guided_json":"` + strings.Repeat("a", 65<<10) + `"`, InvalidValue, "/guided_json"},
		{"tools large", `"tools":["` + strings.Repeat("a", 257<<10) + `"]`, InvalidValue, "/tools"},
		{"prompts", `"prompt":[` + tooMany(2049, `"a"`) + `]`, InvalidValue, "/prompt"},
		{"prompts of ids", `"prompt":[` + tooMany(2049, `[1]`) + `]`, InvalidValue, "/prompt"},
		{"inputs", `"input":[ ` + tooMany(2049, `"a"`) + `]`, InvalidValue, "/input"},
		{"cache_salt empty (CVE-2026-105756)", `"cache_salt":""`, InvalidValue, "/cache_salt"},
		{"cache_salt number", `"cache_salt":5`, InvalidValue, "/cache_salt"},
		{"cache_salt long", `"cache_salt":"` + strings.Repeat("a", 129) + `"`, InvalidValue, "/cache_salt"},
		{"cache_salt odd", `"cache_salt":"a\u0000"`, InvalidValue, "/cache_salt"},
		{"chat_template", `"chat_template":"{% for i in range(10**9) %}{% endfor %}"`, UnsupportedParameter, "/chat_template"},
		{"chat_template_kwargs (GHSA-69j4)", `"chat_template_kwargs":{"chat_template":"x"}`, InvalidValue, "/chat_template_kwargs"},
		{"chat_template_kwargs tokenize", `"chat_template_kwargs":{"a":1,"tokenize":true}`, InvalidValue, "/chat_template_kwargs"},
		{"chat_template_kwargs large", `"chat_template_kwargs":{"a":"` + strings.Repeat("a", 5000) + `"}`, InvalidValue, "/chat_template_kwargs"},
		{"request_id (CVE-2026-105755)", `"request_id":"x"`, UnsupportedParameter, "/request_id"},
		{"kv_transfer_params (CVE-2026-116176)", `"kv_transfer_params":{"remote_host":"10.0.0.1"}`, UnsupportedParameter, "/kv_transfer_params"},
		{"mm_processor_kwargs", `"mm_processor_kwargs":{}`, UnsupportedParameter, "/mm_processor_kwargs"},
		{"api_base (CVE-2024-6587)", `"api_base":"http://169.254.169.254"`, UnsupportedParameter, "/api_base"},
		{"logits_processors", `"logits_processors":["os.system"]`, UnsupportedParameter, "/logits_processors"},
		{"custom_logit_processor", `"custom_logit_processor":"gASV"`, UnsupportedParameter, "/custom_logit_processor"},
		{"lora_path", `"lora_path":"/etc"`, UnsupportedParameter, "/lora_path"},
		{"image_url (CVE-2026-24779)", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]`, InvalidValue, "/messages"},
		{"image_url, escaped", `"messages":[{"content":[{"image_\u0075rl":{"\u0075rl":"http://a/"}}]}]`, InvalidValue, "/messages"},
		{"image_url, twice", `"messages":[{"content":[{"image_url":{"url":"data:,"},"image_url":{"url":"file:///etc/passwd"}}]}]`, InvalidValue, "/messages"},
		{"image_url, as responses have it", `"input":[{"content":[{"type":"input_image","image_url":"https://a/b.png"}]}]`, InvalidValue, "/input"},
		{"source, as messages have it", `"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://a/b.png"}}]}]`, InvalidValue, "/messages"},
		{"video_url", `"messages":[{"content":[{"type":"video_url","video_url":{"url":" http://a"}}]}]`, InvalidValue, "/messages"},
	} {
		_, err := Peek([]byte(`{"model":"m",` + x.more + `}`))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if e.Code != x.code || e.Param != x.param || e.Status != 400 || e.ShouldRetry() {
			t.Errorf("%s: %+v", x.name, e)
		}
	}
}

// What honest clients send passes.
func TestWithinBounds(t *testing.T) {
	for _, more := range []string{
		`"n":8`, `"n":null,"best_of":null,"stop":null,"logit_bias":null,"tools":null,"chat_template":null,"request_id":null`,
		`"logprobs":true,"top_logprobs":20`, `"logprobs":5`, `"prompt_logprobs":0`, `"max_tokens":0`,
		`"logit_bias":{"50256":-100}`, `"stop":"\n"`, `"stop":["a","b","c","d"]`, `"stop_token_ids":[1,2]`,
		`"response_format":{"type":"json_object"}`, `"text":{"format":{"type":"text"}}`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"pattern":{"type":"string","pattern":"^[a-z]{2,40}$"}}}}}`,
		`"structured_outputs":{"choice":["yes","no"]}`, `"guided_regex":"\\d{4}-\\d{2}"`,
		`"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`,
		`"cache_salt":"Team-1.a_b"`, `"chat_template_kwargs":{"enable_thinking":false,"x":{"tokenize":1}}`,
		`"prompt":[` + tooMany(5000, "1") + `]`, `"input":["a","b"]`,
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`,
		`"messages":[{"role":"user","content":"the field image_url takes https://a/b"}]`,
		`"input":[{"content":[{"type":"output_text","annotations":[{"type":"url_citation","url":"https://a"}]}]}]`,
		`"temperature":0.5,"top_p":1,"seed":7,"user":"u","metadata":{"a":"b"},"unheard_of":{"a":[1]}`,
	} {
		if _, err := Peek([]byte(`{"model":"m",` + more + `}`)); err != nil {
			t.Errorf("%.200s: %v", more, err)
		}
	}
}

// The checks cost an ordinary request nothing that can be counted.
func TestBoundsAllocateNothing(t *testing.T) {
	plain := []byte(`{"model":"m","messages":[{"role":"user","content":"What is thaw?"}]}`)
	full := []byte(`{"model":"m","messages":[{"role":"user","content":"What is thaw?"}],"temperature":0.2,"n":1,"top_p":1,"logprobs":true,"top_logprobs":5,` +
		`"stop":["\n"],"max_tokens":64,"logit_bias":{"1":2},"response_format":{"type":"json_object"},"seed":1,"frequency_penalty":0,"presence_penalty":0}`)
	count := func(b []byte) float64 {
		return testing.AllocsPerRun(100, func() {
			if _, err := Peek(b); err != nil {
				t.Fatal(err)
			}
		})
	}
	if a, b := count(plain), count(full); b > a+1 { // the walk of a schema has one closure
		t.Errorf("%v allocations for a plain body, %v for one with every field", a, b)
	}
}

func FuzzBounds(f *testing.F) {
	for _, s := range []string{`"stop":["a"]`, `"structured_outputs":{"regex":"a"}`, `"messages":[{"image_url":{"url":"data:,"}}]`, `"chat_template_kwargs":{"a":{}}`,
		`"tools":[[],{},[{"pattern":"a"}]]`, `"logit_bias":{}`, `"prompt":[]`, `"prompt":[ ]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, more string) {
		e, err := Peek([]byte(`{"model":"m",` + more + `}`))
		if err != nil {
			var o *Error
			if !errors.As(err, &o) || o.Status/100 != 4 {
				t.Fatalf("%v", err)
			}
			return
		}
		if e.N < 1 || e.N > MaxN*max(1, e.Messages) || e.MaxTokens < 0 {
			t.Fatalf("%+v", e)
		}
	})
}
