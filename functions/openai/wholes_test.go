package openai

import (
	"encoding/json/jsontext"
	"fmt"
	"strings"
	"testing"
	"time"
)

// nestedText is JSON in a string of JSON, so many times.
func nestedText(value string, times int) string {
	for range times {
		b, _ := jsontext.AppendQuote(nil, value)
		value = string(b)
	}
	return value
}

// TestRecordOfWholeBodies: what is read of bodies whose members say something together, or are
// at a bound.
func TestRecordOfWholeBodies(t *testing.T) {
	a := strings.Repeat
	const pattern = `{"type":"string","pattern":"(?=x)"}`
	bodies := []string{
		`{"model":null,"Model":"x"}`, `{"Model":"x","model":null}`, `{"Model":"x","model":"m"}`, `{"MODEL":"x"}`, `{"Model":null}`, `{"mODEL":"x","MOdel":"y"}`, `{"m\u006fdel":"m"}`, `{"\u004dodel":"x"}`, `{"model":"m","m\u006fdel":"m"}`,
		`{"messages":[1,2],"prompt":"abc","input":["a"],"model":"m"}`, `{"prompt":[1,2,3],"input":null,"model":"m"}`, `{"input":{"a":[1,2]},"messages":[],"model":"m"}`, `{"prompt":"ab","model":"m","messages":[{"role":"user"}]}`,
		`{"max_tokens":1,"max_completion_tokens":2,"max_output_tokens":3,"model":"m"}`, `{"max_output_tokens":3,"max_tokens":1,"model":"m"}`, `{"max_completion_tokens":null,"max_tokens":1,"model":"m"}`, `{"max_completion_tokens":-1,"max_tokens":5,"model":"m"}`,
		`{"max_tokens":5,"max_completion_tokens":-1,"model":"m"}`, `{"n":18446744073709551617,"model":"m"}`, `{"best_of":18446744073709551617,"model":"m"}`, `{"max_tokens":18446744073709551617,"model":"m"}`, `{"n":1e0,"model":"m"}`, `{"n":000,"model":"m"}`, `{"max_tokens":-2,"model":"m"}`, `{"max_tokens":2147483647,"model":"m"}`, `{"max_tokens":2147483648,"model":"m"}`, `{"max_tokens":1e3,"model":"m"}`, `{"max_tokens":9007199254740993.0,"model":"m"}`,
		`{"stream":true,"stream_options":null,"model":"m"}`, `{"stream":true,"model":"m","stream_options":{ }}`, `{"stream_options":{},"stream":true,"model":"m"}`, `{"stream":true,"stream_options":{"x":{}},"model":"m"}`, `{"stream":true,"model":"m","stream_options":{"include_usage":false}}`,
		`{"stream":true,"stream_options":{"include_usage":true,"include_usage":true},"model":"m"}`, `{"stream":true,"stream_options":{"include_usage":1},"model":"m"}`, `{"stream":true,"stream_options":[],"model":"m"}`, `{"stream_options":{"include_usage":true},"model":"m"}`,
		`{"stream":true,"stream_options":{"include_usage":true}}`, `{"stream":true}`, `{"stream":true,"stream_options":{}}`, `{}`, ` { } `, "\ufeff{\"model\":\"m\"}", "\ufeff{}", `{"model":"m"} x`, `{"model":"m",}`,
		`{"model":"` + a("m", 510) + `"}`, `{"model":"` + a("m", 511) + `"}`, `{"model":"\ud800"}`, `{"model":"\ud83d\ude00"}`, `{"user":"` + a("u", 510) + `","model":"m"}`, `{"user":"` + a("u", 511) + `","model":"m"}`, `{"user":"a\nb","model":"m"}`,
		`{"a/b~c":1,"a/b~c":2,"model":"m"}`, `{"` + a("k", 64) + `":1,"` + a("k", 64) + `":2,"model":"m"}`, `{"` + a("k", 65) + `":1,"` + a("k", 65) + `":2,"model":"m"}`,
		`{"system":"s","instructions":"i","messages":[],"prompt":"p","model":"m"}`, `{"prompt":"p","messages":null,"model":"m"}`, `{"tools":null,"functions":[{"name":"f","strict":true}],"model":"m"}`, `{"functions":[{"name":"f"}],"tools":[{"function":{"strict":true}}],"model":"m"}`,
		`{"text":{"format":{"type":"json_schema"}},"model":"m"}`, `{"text":{"other":{"type":"json_schema"}},"model":"m"}`, `{"response_format":{"type":"regex"},"model":"m"}`, `{"guided_regex":"a","model":"m"}`, `{"output_format":{"type":"grammar"},"model":"m"}`, `{"tools":[{"strict":false}],"model":"m"}`,
		`{"tools":[{"x":{"strict":true}}],"model":"m"}`, `{"best_of":0,"model":"m"}`, `{"best_of":1,"model":"m"}`, `{"n_probs":21,"model":"m"}`, `{"text_1":["a"],"model":"m"}`, `{"text_1":"http://x","model":"m"}`, `{"logit_bias":[],"model":"m"}`, `{"logit_bias":[1],"model":"m"}`,
		`{"cache_salt":"","model":"m"}`, `{"cache_salt":"a","model":"m"}`, `{"cache_salt":"` + a("a", 128) + `","model":"m"}`, `{"cache_salt":"` + a("a", 129) + `","model":"m"}`, `{"x_embeds":1,"model":"m"}`, `{"x_embeds":null,"model":"m"}`, `{"lora":"x","model":"m"}`, `{"session_params":{},"model":"m"}`,
		`{"data_parallel_rank":0,"model":"m"}`, `{"lora":null,"model":"m"}`, `{"priority":0,"model":"m"}`, `{"priority":1,"model":"m"}`, `{"bad_words":["` + a(`a","`, 1023) + `b"],"model":"m"}`, `{"bad_words":["` + a(`a","`, 1024) + `b"],"model":"m"}`, `{"stop_sequences":` + listOf(17, `"a"`) + `,"model":"m"}`,
		`{"ebnf":"` + a("a", 64<<10) + `","model":"m"}`, `{"grammar":` + textOf(64<<10) + `,"model":"m"}`, `{"prompt":[` + tooMany(2049, "9") + `],"model":"m"}`, `{"prompt":[` + tooMany(2049, `"9"`) + `],"model":"m"}`, `{"queries":{"a":` + listOf(2049, `"9"`) + `},"model":"m"}`,
		`{"chat_template_kwargs":{"a":{"tokenize":1}},"model":"m"}`, `{"chat_template_kwargs":{"tokenize":1},"model":"m"}`, `{"chat_template_kwargs":{"processor_kwargs":1},"model":"m"}`, `{"chat_template_kwargs":{"_x":1},"model":"m"}`, `{"chat_template_kwargs":{"_` + a("\u00e4", 40) + `":1},"model":"m"}`,
		`{"guided_json":{"properties":{"a":` + pattern + `,"b":{"properties":{"c":` + pattern + `}}}},"model":"m"}`, `{"guided_json":{"properties":{"b":{"properties":{"c":` + pattern + `}},"a":1}},"model":"m"}`, `{"guided_json":{"properties":{"a":{}},"not":` + pattern + `},"model":"m"}`,
		`{"guided_json":{"patternProperties":{"(?=x)":{}}},"model":"m"}`, `{"guided_json":{"minContains":65536},"model":"m"}`, `{"guided_json":{"maxContains":65537},"model":"m"}`, `{"guided_json":{"maxProperties":65537},"model":"m"}`, `{"guided_json":{"minLength":-1},"model":"m"}`, `{"guided_json":{"minLength":1.0},"model":"m"}`,
		`{"structured_outputs":{"regex":"(?=x)"},"model":"m"}`, `{"regex":"` + a("a", 512) + `","model":"m"}`, `{"regex":"` + a("a", 513) + `","model":"m"}`, `{"response_format":{"json_schema":{"schema":` + nestedText(pattern, 1) + `}},"model":"m"}`,
		`{"tools":[{"function":{"name":"f","parameters":` + pattern + `}},{"function":{"name":"g","parameters":` + pattern + `}}],"tool_choice":"required","model":"m"}`, `{"function_call":"auto","tools":[],"model":"m"}`, `{"function_call":{"name":"f"},"tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`,
		`{"tool_choice":{"type":"auto"},"tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`, `{"tool_choice":{"type":"auto","disable_parallel_tool_use":true},"tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`,
		`{"tool_choice":"required","function_call":"none","tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`, `{"response_format":{"type":"json_object"},"tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`, `{"response_format":{"type":"text"},"tools":[{"name":"f","strict":true,"input_schema":` + pattern + `}],"model":"m"}`,
		`{"tool_choice":{},"tools":[{"name":"f","input_schema":` + pattern + `}],"model":"m"}`, `{"tool_choice":"none","tools":[{"custom":{"name":"x"},"input_schema":` + pattern + `}],"model":"m"}`,
	}
	for _, times := range []int{1, 2, 3} {
		for _, value := range []string{`{"type":"string"}`, pattern} {
			bodies = append(bodies, `{"guided_json":`+nestedText(value, times)+`,"model":"m"}`,
				`{"response_format":{"json_schema":`+nestedText(value, times)+`},"model":"m"}`)
		}
	}
	bodies = append(bodies, `{"guided_json":"{} x","model":"m"}`, `{"guided_json":"{","model":"m"}`,
		`{"guided_json":" ","model":"m"}`, `{"guided_json":"x","model":"m"}`)
	var lines []string
	for _, body := range bodies {
		line := fmt.Sprintf("%.150s (%d bytes): %s", body, len(body), readings([]byte(body)))
		if len(line) > 900 {
			line = line[:900] + fmt.Sprintf("… %d more", len(line)-900)
		}
		lines = append(lines, line)
		for _, peek := range []func([]byte) (Envelope, error){Peek, PeekUnnamed} {
			if env, err := peek([]byte(body)); err == nil {
				if plain, llama := env.CheckTools("vllm"), env.CheckTools("llamacpp"); plain != nil || llama != nil {
					lines = append(lines, fmt.Sprintf("\tvllm %v; llamacpp %v", plain, llama))
				}
			}
		}
	}
	record(t, "wholes.txt", lines)
}

// TestRecordOfStatedErrors: the status and the words of errors in streams and of answers with
// status 200, whatever they state.
func TestRecordOfStatedErrors(t *testing.T) {
	var lines []string
	for _, body := range []string{
		`{"error":{"message":"no","type":"rate_limit_error","code":503}}`, `{"error":{"message":"no","code":400}}`, `{"error":{"message":"no","code":399}}`, `{"error":{"message":"no","code":599}}`, `{"error":{"message":"no","code":600}}`, `{"error":{"message":"no","code":"x","status":"429"}}`,
		`{"error":{"message":"no","status":"X","code":"y"}}`, `{"error":{"message":"no","type":"error","error_type":"overloaded"}}`, `{"error":{"message":"no","type":"validation","error_type":"overloaded"}}`, `{"error":{"message":"no","type":"template_error"}}`, `{"error":{"message":"no","code":409}}`,
		`{"error":{"message":"no","code":529}}`, `{"error":{"message":"no","type":"insufficient_quota"}}`, `{"error":"Bad Request","message":"no"}`, `{"error":"Bad Request","title":"no"}`, `{"error":"a","message":"a"}`, `{"errors":["a"],"title":"b"}`, `{"error":[{"message":"a","code":400},{"message":"b","code":500}]}`,
		`{"error":` + strings.Repeat(`{"error":`, 4) + `"deep"` + strings.Repeat(`}`, 4) + `}`, `{"error":` + strings.Repeat(`{"error":`, 3) + `"deep"` + strings.Repeat(`}`, 3) + `}`, `{"error":{"message":"","x":1}}`, `{"error":{"param":"` + strings.Repeat("p", 200) + `","message":"no"}}`,
		`{"error":{"loc":["body","a"],"msg":"no","type":"missing"}}`, `{"error":{"loc":[],"msg":"no"}}`, `{"error":0}`, `{"error":1}`, `{"error":[]}`, `{"error":""}`, `{"error_message":"no"}`, `{"error_message":"no","choices":[]}`, `{"error_message":"no","choices":[1]}`, `{"error_message":"no","choices":null}`,
		`{"error":null,"object":"error","message":"no"}`, `{"type":"error","message":"no"}`, `{"object":"error"}`, `{"error":"x","choices":[]}`, `{"error":"x"} {"a":1}`, `{"error":"x","error":null}`, `{"error":null,"error":"x"}`,
	} {
		whole := "no error"
		if e := WholeError([]byte(body)); e != nil {
			whole = describe(e)
		}
		e, stated := Failure([]byte("data: " + body + "\n\n"))
		frame := "no error"
		if e != nil {
			frame = fmt.Sprintf("%s, stated %v", describe(e), stated)
		}
		own := EngineError(200, nil, []byte(body), time.Unix(0, 0))
		lines = append(lines, fmt.Sprintf("%.100s: %s", body, whole), "\tin a stream "+frame,
			fmt.Sprintf("\tby itself %s, its own bytes %v", describe(own), own.JSON != nil))
	}
	for _, text := range []string{
		"", strings.Repeat("x", 40<<10), strings.Repeat("\x80", 10), strings.Repeat("a\x80", 10), strings.Repeat("a", 80) + strings.Repeat("\x80", 10), "<title>No</title><p>No, not this</p>", "<p>words</p><script>x</script>", "<title>A</title>B",
	} {
		for _, status := range []int{400, 529} {
			e := EngineError(status, nil, []byte(text), time.Unix(0, 0))
			line := describe(e)
			lines = append(lines, fmt.Sprintf("%d %.60q (%d bytes): %.200s… %d bytes", status, text, len(text), line, len(line)))
		}
	}
	record(t, "stated.txt", lines)
}
