package openai

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// peekAsLlama reads a body as for llama.cpp, which compiles every tool.
func peekAsLlama(more string) *Error {
	env, err := Peek([]byte(`{"model":"m",` + more + `}`))
	if e := env.CheckTools(functions.EngineLlamaCpp); e != nil {
		return e
	}
	var e *Error
	errors.As(err, &e)
	return e
}

// textOf is a JSON string of size bytes, quotes included.
func textOf(size int) string { return `"` + strings.Repeat("a", size-2) + `"` }

// nestOf is an object that is nested depth deep.
func nestOf(depth int) string {
	return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
}

// listOf is an array of n elements.
func listOf(n int, element string) string { return "[" + tooMany(n, element) + "]" }

// TestEdges: each bound takes what is just inside and refuses what is just outside.
func TestEdges(t *testing.T) {
	type edge struct{ field, in, out string }
	var rows []edge
	add := func(names string, pairs ...string) {
		for name := range strings.FieldsSeq(names) {
			for i := 0; i < len(pairs); i += 2 {
				rows = append(rows, edge{name, pairs[i], pairs[i+1]})
			}
		}
	}
	add("n best_of", "1", "0", "8", "9")
	add("logprobs top_logprobs prompt_logprobs n_probs", "0", "-1", "20", "21", "20", "20.5")
	add("logprobs", "true", `"true"`, "false", "[]")
	add("min_tokens", "0", "-1", "1048576", "1048577")
	add("dimensions", "1", "0", "65536", "65537")
	add("max_tokens max_completion_tokens max_output_tokens", "-1", "-2", "2147483647", "2147483648", "0", `"0"`)
	add("priority", "0", "1")
	add("logit_bias", "{"+tooMany(300, `"1":1`)+"}", "{"+tooMany(301, `"1":1`)+"}", "[ ]", "[1]", "{}", "1", "{}", `"a"`, "{}", "true")
	add("stop stop_sequences", listOf(16, `"a"`), listOf(17, `"a"`), textOf(4096), textOf(4097), `"a"`, `{"a":1}`)
	add("stop_token_ids allowed_token_ids bad_words", listOf(1024, "1"), listOf(1025, "1"), "[]", "1")
	add("guided_regex regex", textOf(514), textOf(515), `"a{1000}"`, `"a{1001}"`, `"a"`, "1")
	add("cache_salt", textOf(3), textOf(2), textOf(130), textOf(131), `"aZ09.-_"`, `"a b"`, `"a"`, `"a/"`, `"a"`, `"a:"`, `"a"`, `"a@"`, `"a"`, "\"a`\"", `"a"`, `"a{"`, `"a"`, `"a["`)
	add("chat_template_kwargs", `{"a":`+textOf(4090)+"}", `{"a":`+textOf(4091)+"}", "{}", "[]", `{"a_":{"_b":{"tokenize":1}}}`, `{"_a":1}`)
	for _, name := range strings.Fields("chat_template tokenize conversation messages tokenizer tokenizer_kwargs padding truncation " +
		"max_length return_tensors return_dict processor_kwargs") {
		add("chat_template_kwargs", `{"x`+name+`":1}`, `{"a":{},"`+name+`":1}`)
	}
	add("documents query queries text_1 text_2 data_1 data_2 items inputs texts input prompt",
		listOf(2048, `"a"`), listOf(2049, `"a"`), listOf(3000, "1"), "["+strings.Repeat(`"a",`, 2048)+"1]",
		listOf(2049, "0"), listOf(2049, `[9]`), listOf(2049, "9"), listOf(2049, `{}`),
		`{"content":`+listOf(2048, `"a"`)+"}", `{"content":`+listOf(2049, `"a"`)+"}", "{"+tooMany(2049, `"a":1`)+"}", `{"a":{"b":`+listOf(2049, `"a"`)+"}}")
	schemas := "response_format structured_outputs structural_tag text json_schema guided_json guided_choice guided_grammar grammar ebnf"
	add(schemas, `{"a":`+textOf(65530)+"}", `{"a":`+textOf(65531)+"}")
	add("tools functions", `[{"a":`+textOf(262136)+"}]", `[{"a":`+textOf(262137)+"}]")
	add(schemas+" tools functions", nestOf(32), nestOf(33), listOf(1, nestOf(31)), listOf(1, nestOf(32)),
		listOf(2, nestOf(31)), "["+nestOf(1)+","+nestOf(32)+"]")
	for _, count := range strings.Fields("minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains") {
		add(schemas+" tools functions", `{"`+count+`":65536}`, `{"`+count+`":65537}`, `{"x`+count+`":65537}`, `{"`+count+`":-1}`, `{"`+count+`":0}`, `{"`+count+`":0.5}`,
			`{"`+count+`":9}`, `{"`+count+`":9e9}`)
		for _, other := range []string{`"70000"`, `{"type":"integer"}`, "null", "[70000]", "true"} { // a property of that name
			add(schemas+" tools functions", `{"`+count+`":`+other+`}`, `{"`+count+`":70000}`)
		}
	}
	add(schemas+" tools functions", `{"pattern":`+textOf(514)+"}", `{"pattern":`+textOf(515)+"}", `{"regex":`+textOf(514)+"}", `{"regex":`+textOf(515)+"}",
		`{"patternProperties":{`+textOf(514)+":1}}", `{"patternProperties":{`+textOf(515)+":1}}", `{"pattern":["(?=a)"]}`, `{"pattern":"(?=a)"}`)
	for _, holds := range strings.Fields("json schema json_schema guided_json structural_tag structured_outputs response_format parameters " +
		"input_schema") {
		add(schemas+" tools functions", `{"`+holds+`":"{}"}`, `{"`+holds+`":"{]"}`, `{"`+holds+`":"a{"}`, `{"`+holds+`":" [1"}`, `{"`+holds+`":"\"a\""}`, `{"`+holds+`":"\"a"}`,
			`{"`+holds+`":" {} "}`, `{"`+holds+`":"{}{}"}`, `{"x":"{]"}`, `{"`+holds+`":"{\"maxItems\":65537}"}`)
	}
	add("stream", "true", `"true"`, "false", "0", "null", "{}")
	add("stream_options", `{"include_usage":true}`, `{"include_usage":1}`, `{"a":1,"include_usage":null}`, `{"a":1 "b":2}`, "null", "true", `{"a":`+nestOf(62)+"}", `{"a":`+nestOf(63)+"}",
		`{ "a" : 1 , "b" : 2 }`, `{"a":1,}`, `{}`, `{"a"}`, `{}`, `{a:1}`, `{}`, `{"a":1,"include_usage":true,"include_usage":true}`)
	add("x", nestOf(63), nestOf(64), listOf(1, nestOf(62)), listOf(1, nestOf(63)))
	add("x", strings.Repeat("1", 64), strings.Repeat("1", 65), "1e307", "1e308", "12e306", "12e307",
		"1E+307", "1E+308", "1e-308", "1e-", "1e-999999999", "1e999999999", "1e000307", "1e000308", "1e000000", "1e0000308")
	for _, x := range rows {
		if e := peekAsLlama(`"` + x.field + `":` + x.in); e != nil {
			t.Errorf("%s: %.80s is refused: %v", x.field, x.in, e)
		}
		e := peekAsLlama(`"` + x.field + `":` + x.out)
		if e == nil {
			t.Errorf("%s: %.80s passes", x.field, x.out)
		} else if e.Status != 400 || e.Code != InvalidJSON && !strings.Contains(e.Message+e.Param, x.field) && e.Param != "/tools" {
			t.Errorf("%s: %.80s: %d %v", x.field, x.out, e.Status, e)
		}
	}
}

// TestEdgesOfNames: names and lists of keys at their bounds.
func TestEdgesOfNames(t *testing.T) {
	e, err := Peek([]byte(`{"model":` + textOf(512) + `,"user":` + textOf(512) + "}"))
	if err != nil || len(e.Model) != 510 || len(e.User) != 510 {
		t.Errorf("names of 510 bytes: %v, %d and %d", err, len(e.Model), len(e.User))
	}
	if _, err := Peek([]byte(`{"model":` + textOf(513) + "}")); err == nil {
		t.Error("a model of 511 bytes passes")
	}
	for _, user := range []string{textOf(513), "1", `["a"]`} {
		if e, err := Peek([]byte(`{"model":"m","user":` + user + "}")); err != nil || e.User != "" {
			t.Errorf("user %.20s: %q, %v", user, e.User, err)
		}
	}
	for n, want := range map[int]bool{15: true, 16: true, 17: true, MaxKeys - 1: true, MaxKeys: false} {
		if _, err := Peek([]byte(`{"model":"m"` + manyKeys(n) + `}`)); (err == nil) != want {
			t.Errorf("%d keys and the model: %v", n, err)
		}
		for k := range min(n, MaxKeys-2) { // each of them twice
			var e *Error
			if _, err := Peek(fmt.Appendf(nil, `{"model":"m"%s,"k%d":1}`, manyKeys(min(n, MaxKeys-2)), k)); !errors.As(err, &e) || e.Param != fmt.Sprintf("/k%d", k) {
				t.Errorf("%d keys, k%d twice: %v", n, k, err)
			}
		}
	}
	for size, want := range map[int]string{64: "/" + strings.Repeat("k", 64), 65: ""} {
		key := strings.Repeat("k", size)
		if e := peekAsLlama(`"` + key + `":1,"` + key + `":1`); e == nil || e.Param != want {
			t.Errorf("the pointer of a key of %d bytes: %v", size, e)
		}
	}
	if e := peekAsLlama(`"` + strings.Repeat("x", 41) + `_embeds":1`); e == nil || !strings.HasPrefix(e.Message, strings.Repeat("x", 40)+"… is not") {
		t.Errorf("a long name that is not supported: %v", e)
	}
	// Words of a request in a message: whole up to 40 bytes, never half a character.
	for name, want := range map[string]string{
		"_" + strings.Repeat("a", 39): "set _" + strings.Repeat("a", 39) + ".", "_" + strings.Repeat("a", 40): "set _" + strings.Repeat("a", 39) + "….",
		"_" + strings.Repeat("é", 30): "set _" + strings.Repeat("é", 19) + "?….",
	} {
		if e := peekAsLlama(`"chat_template_kwargs":{"` + name + `":1}`); e == nil || !strings.HasSuffix(e.Message, want) {
			t.Errorf("%s: %v, want %s", name, e, want)
		}
	}
}

// TestUnsupportedNames: each is refused with any value but null.
func TestUnsupportedNames(t *testing.T) {
	for name := range strings.FieldsSeq("chat_template request_id rid kv_transfer_params ec_transfer_params mm_processor_kwargs " +
		"media_io_kwargs api_base base_url logits_processors " +
		"custom_logit_processor custom_params vllm_xargs extra_args lora_path lora session_params " +
		"bootstrap_host bootstrap_port bootstrap_room data_parallel_rank id_slot slot_id " +
		"multi_modal_data multi_modal_uuids x_embeds prompt_embeds") {
		for _, value := range []string{`"a"`, "1", "true", "false", "{}", "[]"} {
			if e := peekAsLlama(`"` + name + `":` + value); e == nil || e.Code != UnsupportedParameter || e.Param != "/"+name || !strings.Contains(e.Message, name) {
				t.Errorf("%s: %s: %v", name, value, e)
			}
		}
		if e := peekAsLlama(`"` + name + `":null`); e != nil {
			t.Errorf("%s: null: %v", name, e)
		}
	}
}

// TestMediaNames: by its name alone, a member anywhere in a message takes media, an address,
// a text or nothing.
func TestMediaNames(t *testing.T) {
	const address, path, data, plain = `"https://a/b"`, `"/etc/passwd"`, `"data:image/png;base64,AAAA"`, `"abc"`
	type row struct {
		member       string // %s is the value
		takes, leave []string
	}
	var rows []row
	for name := range strings.FieldsSeq("image video audio file images videos audios files image_url video_url audio_url file_url " +
		"image_path video_path audio_path input_image input_video input_audio input_file image_data video_data audio_data " +
		"ref_audio reference_audio ref_image reference_image multimodal_data") {
		rows = append(rows, row{`{"` + name + `":%s}`, []string{data, "1", "null"}, []string{address, path, plain}},
			row{`{"` + name + `":{"whatever":%s}}`, []string{data, "1"}, []string{address, path, plain}},
			row{`{"` + name + `":[{"data":%s}]}`, []string{data, plain, `"a/b+="`, `"\/9j"`}, []string{address, `"a.png"`, `"~a"`, `"a:b"`, `"\u0061"`}},
			row{`{"` + name + `":{"file_data":%s}}`, []string{data, plain}, []string{address, `"a.b"`}},
			row{`{"` + name + `":{"b64_json":%s}}`, []string{data, plain}, []string{address, `"a.b"`}},
			row{`{"` + name + `":{"x_embeds":%s}}`, []string{"null"}, []string{plain, data, "1"}})
		for label := range strings.FieldsSeq("type detail format media_type mime_type filename name title voice id file_id uuid " +
			"cache_control transcript language context_compression") {
			rows = append(rows, row{`{"` + name + `":{"` + label + `":%s}}`, []string{address, path, plain}, nil})
		}
	}
	for name := range strings.FieldsSeq("my_image video_x theaudios") {
		rows = append(rows, row{`{"` + name + `":%s}`, []string{plain, data, `"a/b"`, `"http"`},
			[]string{address, path, `" /etc/passwd"`, `"\tfile:a"`, `"./a"`, `"../a"`, `"~/a"`, `"\\\\host"`, `"file:a"`, `"http:a"`, `"https:a"`, `"ftp:a"`, `" HTTP://a"`, `"s3://a"`, `"\u002fetc"`}})
	}
	for name := range strings.FieldsSeq("url uri path href") {
		rows = append(rows, row{`{"` + name + `":%s}`, []string{address, path}, nil}, row{`{"source":{"` + name + `":%s}}`, []string{data}, []string{address, path, plain}},
			row{`{"source":[{"` + name + `":%s}]}`, []string{data}, []string{address, path, plain}})
	}
	for name := range strings.FieldsSeq("data file_data b64_json") {
		rows = append(rows, row{`{"` + name + `":%s,"image":1}`, []string{address, path}, nil}, row{`{"source":{"` + name + `":%s}}`, []string{data, plain}, []string{address, `"a.b"`}})
	}
	for name := range strings.FieldsSeq("role content type text name id function tool_calls tool_call_id detail other source") {
		rows = append(rows, row{`{"` + name + `":%s,"image":1}`, []string{address, path, plain}, nil})
	}
	for name := range strings.FieldsSeq("arguments input parameters input_schema metadata") {
		rows = append(rows, row{`{"` + name + `":{"image":%s,"x_embeds":1},"image":1}`, []string{address, path, plain}, nil},
			row{`{"` + name + `":{},"image":%s}`, []string{data}, []string{address, path}})
	}
	rows = append(rows, row{`{"image_embeds":%s}`, []string{"null"}, []string{`"a"`, "1", "{}", data}})
	long := strings.Repeat("A", 300)
	rows = append(rows, row{`{"image":{"data":%s}}`, []string{`"` + long + `:"`}, []string{`"` + long[:255] + `:"`}}) // only its head is looked at
	for _, x := range rows {
		for _, in := range []string{`"messages":[{"content":[%s]}]`, `"input":[%s]`, `"documents":%s`, `"unheard_of":[[%s]]`, `"query":{"a":[1,%s]}`, ""} {
			if in == "" { // by itself in the body
				if in = strings.TrimSuffix(strings.TrimPrefix(x.member, "{"), "}"); strings.Count(in, "image")+strings.Count(in, "_embeds") > 1 {
					continue // a tool's call, whose members are not looked at deeper down alone
				}
				x.member = "%s"
			}
			ask := func(value string) *Error {
				return peekAsLlama(strings.Replace(in, "%s", strings.Replace(x.member, "%s", value, 1), 1))
			}
			for _, value := range x.takes {
				if e := ask(value); e != nil {
					t.Errorf("%s in %s with %s: %v", x.member, in, value, e)
				}
			}
			for _, value := range x.leave {
				if e := ask(value); e == nil || e.Code != InvalidValue && e.Code != UnsupportedParameter || !strings.Contains(in, `"`+strings.TrimPrefix(e.Param, "/")+`":`) {
					t.Errorf("%s in %s with %s: %v", x.member, in, value, e)
				}
			}
		}
	}
}

// TestSectionsOfEachName: every name of a section is remembered as one.
func TestSectionsOfEachName(t *testing.T) {
	for section, names := range map[Section]string{
		SectionPrompt: "messages input prompt", SectionSystem: "system instructions", SectionTexts: "documents queries text_2 data_2 items inputs texts",
		SectionTools: "tools functions", SectionFormat: "response_format output_format text",
		SectionGuided: "guided_json guided_choice guided_grammar guided_regex structured_outputs structural_tag json_schema grammar ebnf regex",
	} {
		for name := range strings.FieldsSeq(names) {
			body := []byte(`{"model":"m","a":[1],"` + name + `":"x","z":1}`)
			e, err := Peek(body)
			if err != nil {
				t.Fatal(name, err)
			}
			for s := range sections {
				if got, want := string(e.Section(body, s)), map[bool]string{true: `"x"`}[s == section]; got != want {
					t.Errorf("%s: section %d is %q, want %q", name, s, got, want)
				}
			}
			if got := e.Structured(body); got != (section == SectionGuided) {
				t.Errorf("%s: structured %v", name, got)
			}
		}
	}
	for more, want := range map[string]bool{
		`"response_format":{"type":"json_object"}`: true, `"response_format":{"type":"json_schema"}`: true, `"response_format":{"type":"structural_tag"}`: true,
		`"response_format":{"type":"grammar"}`: true, `"text":{"format":{"type":"regex"}}`: true, `"output_format":{"type":"json_schema"}`: true,
		`"response_format":{"type":["json_object"]}`: false, `"response_format":{"x":{"type":"json_object"}}`: false, `"text":{"form":{"type":"regex"}}`: false,
		`"response_format":"json"`: false, `"tools":[{"strict":"true"}]`: false, `"tools":[{"x":{"strict":true}}]`: false, `"tools":[],"response_format":{"type":"grammar"}`: true,
		`"tools":[{"strict":true}],"response_format":{"type":"text"}`: true,
	} {
		body := []byte(`{"model":"m",` + more + `}`)
		if e, err := Peek(body); err != nil || e.Structured(body) != want {
			t.Errorf("%s: structured %v, %v", more, !want, err)
		}
	}
}

// TestEdgesOfForms: bounds of a form, and heads of parts that parsers read in two ways.
func TestEdgesOfForms(t *testing.T) {
	part := func(head, value string) string { return "--b\r\n" + head + "\r\n\r\n" + value + "\r\n" }
	field := func(name, value string) string { return part(`Content-Disposition: form-data; name="`+name+`"`, value) }
	fields := func(n int) (all string) {
		for i := range n {
			all += field(fmt.Sprint("p", i), "a")
		}
		return all
	}
	head := func(size int) string {
		const begin = "Content-Disposition: form-data; name=\"a\"\r\nX: "
		return part(begin+strings.Repeat("x", size-len(begin)), "a")
	}
	model := field("model", "m")
	for name, x := range map[string]struct{ in, out string }{
		"parts": {fields(63), fields(64)}, "the head of a part": {head(1024), head(1025)},
		"a part twice":        {field("a[]", "1") + field("a[]", "2"), field("a", "1") + field("a", "2")},
		"two files of a name": {part(`Content-Disposition: form-data; name="f"; filename="a"`, "1") + part(`Content-Disposition: form-data; name="f"; filename="b"`, "2"), ""},
		"space in a field":    {part("Content-Disposition: form-data; name=\"a\"\r\nX-Y: z", "a"), part("Content-Disposition: form-data; name=\"a\"\r\nX Y: z", "a")},
		"tab in a field":      {part("Content-Disposition: form-data; name=\"a\"\r\nX-Y:\tz", "a"), part("Content-Disposition : form-data; name=\"a\"", "a")},
		"no colon":            {"", part("Content-Disposition: form-data; name=\"a\"\r\nX", "a")},
		"two dispositions":    {part("CONTENT-disposition: form-data; name=\"a\"", "a"), part("Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"a\"", "a")},
		"no disposition":      {"", part("X: y", "a")},
		"attachment":          {"", part(`Content-Disposition: attachment; name="a"`, "a")},
		"no name":             {"", part("Content-Disposition: form-data", "a")},
		"a name in parts":     {part(`Content-Disposition: form-data; x="; name*0=y"; name="a"`, "a"), part(`Content-Disposition: form-data; name*0="a"`, "a")},
		"an extended name":    {part(`Content-Disposition: form-data; name="a"; filename*=UTF-8''a`, "a"), part(`Content-Disposition: form-data; name="a"; name*=UTF-8''b`, "a")},
		"a quote in a name":   {part(`Content-Disposition: form-data; name="a"; filename="a\"; name*=b"`, "a"), ""},
		"a zero":              {part("Content-Disposition: form-data; name=\"a\"\r\nX: y\x01", "a"), part("Content-Disposition: form-data; name=\"a\"\r\nX: y\x00", "a")},
		"a space in a name":   {"", part("Content-Disposition: form-data; name=\"a\"\r\n X: y", "a")},
		"a backslash":         {"", part(`Content-Disposition: form-data; name="a\\b"`, "a")},
		"a line feed alone":   {"", part("Content-Disposition: form-data; name=\"a\"\nX: y", "a")},
		"a model as a file":   {part(`Content-Disposition: form-data; name="file"; filename="model"`, "a"), part(`Content-Disposition: form-data; name="Model"; filename="a"`, "a")},
		"a miscased model":    {field("models", "a"), field("Model", "a")},
		"stream":              {field("stream", "True"), field("stream", "yes")},
		"no stream":           {field("stream", "0"), field("stream", "2")},
	} {
		for body, ok := range map[string]bool{x.in: true, x.out: false} {
			if body == "" && !ok {
				continue
			}
			for _, whole := range []string{model + body, body + model} {
				e, err := PeekMultipart("multipart/form-data; boundary=b", []byte(whole+"--b--\r\n"))
				if (err == nil) != ok || ok && (e.Model != "m" || e.Stream != strings.Contains(body, "True") || e.AsksUsage()) {
					t.Errorf("%s: %.300q: %v, %+v", name, body, err, e)
				}
			}
		}
	}
	for value, ok := range map[string]bool{strings.Repeat("m", 256): true, strings.Repeat("m", 257): false, " ~": true,
		"a\x1f": false, "a\x7f": false, "\u00e9": false, "": false} {
		body := []byte(field("model", value) + "--b--")
		if e, err := PeekMultipart("multipart/form-data; boundary=b", body); (err == nil) != ok || ok && e.Model != value {
			t.Errorf("model %.20q: %v", value, err)
		}
	}
	for size, ok := range map[int]bool{1: true, 70: true, 71: false} {
		boundary := strings.Repeat("b", size)
		body := strings.ReplaceAll(model+"--b--", "--b", "--"+boundary)
		if _, err := PeekMultipart("multipart/form-data; boundary="+boundary, []byte(body)); (err == nil) != ok {
			t.Errorf("a boundary of %d bytes: %v", size, err)
		}
	}
	for body, want := range map[string]string{ // what the engine gets
		model + "--b--": model + "--b--", "\r\n" + model + "--b--": model + "--b--", "x\r\n" + model + "--b--\r\n": model + "--b--\r\n", model + "--b-- \t\r\nx": model + "--b--",
		"x" + model + "--b--": "", model + "--b--x": "", model + "--b--\r\n--b": "", model: "", model + "--b": "", model + "--bx--": "", strings.Replace(model, "--b\r", "--b \t\r", 1) + "--b--": strings.Replace(model, "--b\r", "--b \t\r", 1) + "--b--",
		strings.Replace(model, "--b\r", "--bx\r", 1) + "--b--": "",
	} {
		e, err := PeekMultipart("multipart/form-data; boundary=b", []byte(body))
		got := ""
		if err == nil {
			got = string(bytes.Join(e.Splice(nil, []byte(body), "m", true), nil))
		}
		if got != want {
			t.Errorf("%q became %q, want %q (%v)", body, got, want, err)
		}
	}
}
