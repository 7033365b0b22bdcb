package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// Each row is one field of one public endpoint that an engine would fetch, read from its
// disk, deserialise or compile.
func TestEveryField(t *testing.T) {
	const address, file = `"http://169.254.169.254/latest"`, `"file:///etc/passwd"`
	part := `{"content":[{"type":"image_url","image_url":{"url":` + address + `}}]}`
	backtracks := `{"type":"string","pattern":"(a+)+(?=b)"}`
	text := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	deep := strings.Repeat(`{"properties":{"a":`, 2500) + `{}` + strings.Repeat(`}}`, 2500)
	nested := strings.Repeat(`{"properties":{"a":`, 25) + `{}` + strings.Repeat(`}}`, 25)
	for _, x := range []struct {
		endpoint, more string
		code           Code
		param          string
	}{
		// Addresses.
		{"/v1/chat/completions", `"messages":[{"content":[{"image_url":` + address + `}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"image_url":[` + address + `]}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":{"image_url":{"url":` + file + `}}}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":{"content":[{"image_url":{"url":` + file + `}}]}`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"type":"image","image":` + address + `}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"type":"input_audio","input_audio":{"data":` + address + `,"format":"wav"}}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"type":"file","file":{"filename":"a","file_data":` + file + `}}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"video_url":{"uri":"/data/a.mp4"}}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"image_url":{"anything":"/etc/passwd"}}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"my_image":"https://a/b"}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"my_image":"FILE:/etc/passwd"}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"messages":[{"content":[{"i\u006dage":` + address + `}]}]`, InvalidValue, "/messages"},
		{"/v1/chat/completions", `"image":` + address, InvalidValue, "/image"},
		{"/v1/chat/completions", `"unheard_of":[[{"video":` + file + `}]]`, InvalidValue, "/unheard_of"},
		{"/v1/completions", `"prompt":[{"image":` + address + `}]`, InvalidValue, "/prompt"},
		{"/v1/responses", `"input":[{"content":[{"type":"input_file","file_url":` + address + `}]}]`, InvalidValue, "/input"},
		{"/v1/responses", `"input":[{"type":"computer_call_output","output":{"image_url":` + address + `}}]`, InvalidValue, "/input"},
		{"/v1/messages", `"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":` + address + `}}]}]}]`, InvalidValue, "/messages"},
		{"/v1/messages", `"system":[{"type":"image","source":{"type":"url","url":` + address + `}}]`, InvalidValue, "/system"},
		{"/v1/embeddings", `"input":[{"image":` + address + `}]`, InvalidValue, "/input"},
		{"/v1/embeddings", `"input":[{"text":"a","image":"/etc/passwd"}]`, InvalidValue, "/input"},
		{"/v1/embeddings", `"input":{"image":` + address + `}`, InvalidValue, "/input"},
		{"/v1/embeddings", `"messages":` + "[" + part + "]", InvalidValue, "/messages"},
		{"/v1/score", `"text_1":` + part, InvalidValue, "/text_1"},
		{"/v1/score", `"text_2":[` + part + `]`, InvalidValue, "/text_2"},
		{"/v1/score", `"data_1":` + part, InvalidValue, "/data_1"},
		{"/v1/score", `"data_2":` + part, InvalidValue, "/data_2"},
		{"/v1/score", `"queries":` + part, InvalidValue, "/queries"},
		{"/v1/score", `"items":[` + part + `]`, InvalidValue, "/items"},
		{"/v1/rerank", `"query":` + part, InvalidValue, "/query"},
		{"/v1/rerank", `"documents":` + part, InvalidValue, "/documents"},
		{"/v2/rerank", `"documents":[` + part + `]`, InvalidValue, "/documents"},
		{"/rerank", `"documents":[{"content":[{"video_url":{"url":` + file + `}}]}]`, InvalidValue, "/documents"},
		{"/tokenize", `"messages":[` + part + `]`, InvalidValue, "/messages"},
		{"/v1/audio/speech", `"ref_audio":` + file, InvalidValue, "/ref_audio"},
		{"/v1/audio/speech", `"references":[{"audio_path":"/etc/passwd"}]`, InvalidValue, "/references"},

		// Tensors, and places in the engine.
		{"/v1/completions", `"prompt_embeds":"gASV"`, UnsupportedParameter, "/prompt_embeds"},
		{"/v1/completions", `"prompt_embeds":["gASV"]`, UnsupportedParameter, "/prompt_embeds"},
		{"/v1/completions", `"input_embeds":[[0.1]]`, UnsupportedParameter, "/input_embeds"},
		{"/v1/chat/completions", `"messages":[{"content":[{"type":"image_embeds","image_embeds":"gASV"}]}]`, UnsupportedParameter, "/messages"},
		{"/v1/score", `"data_1":{"content":[{"type":"audio_embeds","audio_embeds":{"a":"gASV"}}]}`, UnsupportedParameter, "/data_1"},
		{"/v1/chat/completions", `"priority":-5`, UnsupportedParameter, "/priority"},
		{"/v1/chat/completions", `"vllm_xargs":{"kv_transfer_params":"x"}`, UnsupportedParameter, "/vllm_xargs"},
		{"/v1/chat/completions", `"custom_params":{}`, UnsupportedParameter, "/custom_params"},

		// Counts and sizes.
		{"/v1/rerank", `"documents":[` + tooMany(100_000, `"a"`) + `]`, InvalidValue, "/documents"},
		{"/v1/rerank", `"documents":{"content":[` + tooMany(2049, `{"type":"text"}`) + `]}`, InvalidValue, "/documents"},
		{"/v1/score", `"queries":[` + tooMany(2049, `"a"`) + `]`, InvalidValue, "/queries"},
		{"/v1/score", `"text_2":[` + tooMany(2049, `"a"`) + `]`, InvalidValue, "/text_2"},
		{"/v1/chat/completions", `"max_tokens":1000000000000000000`, InvalidValue, "max_tokens"},
		{"/v1/chat/completions", `"max_tokens":100000000000000000`, InvalidValue, "max_tokens"},
		{"/v1/chat/completions", `"max_completion_tokens":2147483648`, InvalidValue, "max_completion_tokens"},
		{"/v1/responses", `"max_output_tokens":2147483648`, InvalidValue, "max_output_tokens"},
		{"/v1/chat/completions", `"min_tokens":2147483648,"ignore_eos":true`, InvalidValue, "/min_tokens"},
		{"/v1/embeddings", `"dimensions":1000000000`, InvalidValue, "/dimensions"},

		// Schemas and patterns, in strings too.
		{"/v1/chat/completions", `"guided_json":` + text(deep), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":` + text(nested), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":` + text(" \n"+backtracks), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":` + text(text(backtracks)), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":` + text(text(text(text("{}")))), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":` + text(`{"json":`+text(`{"json":`+text(`{}`)+`}`)+`}`), InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"guided_json":"{\"a\":NaN}"`, InvalidValue, "/guided_json"},
		{"/v1/chat/completions", `"structured_outputs":{"json":` + text(nested) + `}`, InvalidValue, "/structured_outputs"},
		{"/v1/chat/completions", `"structured_outputs":{"json":` + text(backtracks) + `}`, InvalidValue, "/structured_outputs"},
		{"/v1/chat/completions", `"structured_outputs":{"structural_tag":` + text(`{"structures":[{"schema":`+backtracks+`}]}`) + `}`, InvalidValue, "/structured_outputs"},
		{"/v1/chat/completions", `"json_schema":` + text(backtracks), InvalidValue, "/json_schema"},
		{"/v1/chat/completions", `"tools":[{"function":{"parameters":` + text(backtracks) + `}}]`, InvalidValue, "/tools"},
		{"/v1/messages", `"tools":[{"input_schema":{"properties":{"a":` + backtracks + `}}}]`, InvalidValue, "/tools"},
		{"/v1/responses", `"text":{"format":{"schema":{"patternProperties":{"(a+)+(?=b)":{}}}}}`, InvalidValue, "/text"},
		{"/v1/chat/completions", `"response_format":{"json_schema":{"schema":{"patternProperties":{"` + strings.Repeat("a", 513) + `":{}}}}}`, InvalidValue, "/response_format"},
		{"/v1/chat/completions", `"response_format":{"json_schema":{"schema":{"type":"string","minLength":1000000000}}}`, InvalidValue, "/response_format"},
		{"/v1/chat/completions", `"response_format":{"json_schema":{"schema":{"maxItems":1e9}}}`, InvalidValue, "/response_format"},
		{"/v1/chat/completions", `"guided_json":` + text(`{"minItems":-1}`), InvalidValue, "/guided_json"},
	} {
		if !Public(x.endpoint) {
			t.Errorf("%s is not public", x.endpoint)
		}
		more := x.more
		if len(more) > 160 {
			more = more[:160] + "…"
		}
		for _, peek := range []func([]byte) (Envelope, error){Peek, PeekUnnamed} {
			body := []byte(`{"model":"m",` + x.more + `}`)
			env, err := peek(body)
			e := env.CheckTools(functions.EngineLlamaCpp) // the strictest
			if e == nil && !errors.As(err, &e) {
				t.Errorf("%s %s: %v", x.endpoint, more, err)
				continue
			}
			if e.Code != x.code || e.Param != x.param || e.Status != 400 || e.ShouldRetry() {
				t.Errorf("%s %s: %+v", x.endpoint, more, e)
			}
		}
	}
}

// TestHonestMedia: bodies of clients, tools and agents that carry their own media or only
// speak of files pass.
func TestHonestMedia(t *testing.T) {
	for _, more := range []string{
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"},"uuid":"x"}]}]`,
		`"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"\/9j/AA+=","format":"wav"}}]}]`,
		`"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AAAA"}}]}]`,
		`"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}}]}]`,
		`"messages":[{"role":"assistant","audio":{"id":"audio_1"},"content":null}],"modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}`,
		`"input":"a","image":{"context_compression":"auto"}`,
		`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBOR"},"cache_control":{"type":"ephemeral"}}]}]`,
		`"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"read","input":{"file":"/etc/hosts","image":"a.png","url":"https://a"}}]}]`,
		`"messages":[{"role":"assistant","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{\"image_url\":\"https://a\"}"}}]}]`,
		`"messages":[{"role":"user","content":"see https://a/image.png and file:///etc/passwd"}]`,
		`"messages":[{"role":"user","content":[{"type":"text","text":"image_url: https://a"}]}]`,
		`"input":[{"type":"message","content":[{"type":"output_text","text":"a","annotations":[{"type":"url_citation","url":"https://a","title":"b"}]}]}]`,
		`"input":[{"type":"web_search_call","action":{"type":"open_page","url":"https://a"}}]`,
		`"input":[{"content":[{"type":"input_image","image_url":"data:,","detail":"auto"}]}]`,
		`"input":[{"text":"a"},{"image":"data:image/png;base64,AAAA"}]`,
		`"tools":[{"type":"function","function":{"name":"draw","parameters":{"properties":{"image":{"type":"string","description":"https://a"},"file":{"type":"string"},"pattern":{"type":"string","minLength":1,"maxLength":4096}}}}}]`,
		`"tools":[{"type":"web_search_preview"}],"tool_choice":{"type":"function","function":{"name":"image"}}`,
		`"metadata":{"image":"https://a","file":"/x"}`,
		`"documents":["a","b"],"query":"https://a/image.png","top_n":3`,
		`"documents":[{"title":"a","text":"b","url":"https://a"}]`,
		`"text_1":"a","text_2":["b","c"]`, `"items":[1,2,3]`, `"queries":["a"]`,
		`"guided_json":"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}}}"`,
		`"guided_grammar":"root ::= \"[\" [a-z]+ \"]\""`, `"ebnf":"[not json"`,
		`"structured_outputs":{"json":"{\"type\":\"object\"}"}`, `"response_format":{"type":"json_schema","json_schema":{"schema":{"patternProperties":{"^x-":{}}}}}`,
		`"max_tokens":2147483647`, `"min_tokens":1048576`, `"priority":0`, `"priority":null`, `"prompt_embeds":null`, `"dimensions":1024`,
		`"prompt":[` + tooMany(5000, "1") + `]`, `"input":"an image of http://a"`,
	} {
		if _, err := Peek([]byte(`{"model":"m",` + more + `}`)); err != nil {
			t.Errorf("%.200s: %v", more, err)
		}
	}
}

// TestFormFields: fields of a form have the bounds of the JSON members of their names.
func TestFormFields(t *testing.T) {
	form := func(name, value string) []byte {
		return []byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"" + name +
			"\"\r\n\r\n" + value + "\r\n--b--\r\n")
	}
	for _, x := range []struct {
		name, value string
		code        Code // "": accepted
	}{
		{"language", "en", ""}, {"response_format", "verbose_json", ""}, {"temperature", "0.2", ""}, {"timestamp_granularities[]", "word", ""},
		{"prompt", "https://a", ""}, {"n", "1", ""}, {"logprobs", "true", ""}, {"max_completion_tokens", "100", ""},
		{"n", "100000", InvalidValue}, {"best_of", "64", InvalidValue}, {"best_of[]", "64", InvalidValue}, {"max_tokens", "x", InvalidValue}, {"max_output_tokens", "-2", InvalidValue}, {"max_tokens", "-1", ""}, {"n", "8", ""}, {"n", "9", InvalidValue},
		{"max_completion_tokens", "99999999999", InvalidValue},
		{"request_id", "x", UnsupportedParameter}, {"kv_transfer_params", "{}", UnsupportedParameter}, {"vllm_xargs", "{}", UnsupportedParameter},
		{"mm_processor_kwargs", "{}", UnsupportedParameter}, {"priority", "-1", UnsupportedParameter}, {"prompt_embeds", "gASV", UnsupportedParameter},
		{"stream", "", ""}, {"stream", "False", ""}, {"stream", "0", ""},
		{"file", "http://169.254.169.254/", InvalidValue}, {"audio_url", "file:///etc/passwd", InvalidValue}, {"guided_regex", "(?=a)", InvalidValue},
	} {
		env, err := PeekMultipart("multipart/form-data; boundary=b", form(x.name, x.value))
		var e *Error
		if errors.As(err, &e) != (x.code != "") || e != nil && (e.Code != x.code || e.Param != x.name || e.Status != 400) || env.Stream {
			t.Errorf("%s=%s: stream %v, %v", x.name, x.value, env.Stream, err)
		}
	}
}

// addressesOf lists the strings of a body that an engine would fetch, found with another
// parser than the one that is tested: it follows vLLM's and SGLang's names of content parts.
func addressesOf(v any, name string) (found []string) {
	switch v := v.(type) {
	case string:
		switch name {
		case "image_url", "video_url", "audio_url", "file_url", "image", "video", "audio", "url of media", "prompt_embeds", "image_embeds",
			"audio_embeds":
			if !strings.HasPrefix(v, "data:") {
				found = append(found, v)
			}
		}
	case []any:
		for _, x := range v {
			found = append(found, addressesOf(x, name)...)
		}
	case map[string]any:
		for k, x := range v {
			switch name {
			case "image_url", "video_url", "audio_url", "file_url", "source":
				if k == "url" {
					k = "url of media"
				}
			}
			switch k {
			case "arguments", "input", "parameters", "input_schema", "metadata", "tools", "functions", "tool_choice", "chat_template_kwargs":
				continue // no engine fetches what a tool is called with
			}
			if strings.HasSuffix(k, "_embeds") && x != nil {
				found = append(found, k)
			}
			found = append(found, addressesOf(x, k)...)
		}
	}
	return found
}

// FuzzAddresses: no accepted body holds an address or a tensor.
func FuzzAddresses(f *testing.F) {
	for _, s := range []string{
		`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}},{"image_url":"http://a"}]}]`,
		`"input":[{"image":"http://a"},{"content":[{"image_url":["data:,","x"]}]}]`, `"image":{"image":["x"]}`,
		`"documents":{"content":[{"video_url":{"url":"file:///a"}}]}`, `"messages":[{"content":[{"source":{"url":"x"}}]}]`,
		`"text_1":{"content":[{"audio_embeds":[1]}]}`, `"x":{"i\u006dage":"\u0064ata:"}`, `"prompt_embeds":"a"`, `"a":{"audio":{"voice":"b","url":"c"}}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, more string) {
		body := []byte(`{"model":"m",` + more + `}`)
		if _, err := Peek(body); err != nil {
			return
		}
		var all map[string]any
		if err := json.Unmarshal(body, &all); err != nil {
			t.Fatalf("accepted, and encoding/json refuses it: %v", err)
		}
		for k, v := range all {
			switch k {
			case "tools", "functions", "tool_choice", "metadata", "response_format", "structured_outputs", "structural_tag", "text", "json_schema",
				"guided_json", "guided_choice", "guided_grammar", "grammar", "ebnf", "chat_template_kwargs", "logit_bias", "stream_options",
				"stop", "stop_sequences", "stop_token_ids", "allowed_token_ids", "bad_words", "user":
				continue
			}
			if found := addressesOf(map[string]any{k: v}, ""); k != "input" && k != "parameters" && k != "arguments" && len(found) > 0 {
				t.Errorf("%s holds %q", body, found)
			}
			if k == "input" {
				if found := addressesOf(v, k); len(found) > 0 {
					t.Errorf("%s holds %q", body, found)
				}
			}
		}
	})
}

// BenchmarkPeekMedia: a body with media is walked.
func BenchmarkPeekMedia(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 1<<20) + `"}}]}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Peek(body); err != nil {
			b.Fatal(err)
		}
	}
}
