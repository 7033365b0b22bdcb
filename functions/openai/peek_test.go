package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPeek(t *testing.T) {
	for _, x := range []struct {
		body string
		want Envelope
	}{
		{`{"model":"tiny"}`, Envelope{Model: "tiny", N: 1}},
		{" {\r\n\t\"model\" : \"team/tiny:pirate\" } \n", Envelope{Model: "team/tiny:pirate", N: 1}},
		{`{"mo\u0064el":"ti\u006ey"}`, Envelope{Model: "tiny", N: 1}},
		{`{"model":"\ud83d\ude00"}`, Envelope{Model: "😀", N: 1}},
		{`{"model":"m","stream":true,"n":3,"user":"a\"b","max_tokens":5}`, Envelope{Model: "m", Stream: true, N: 3, User: `a"b`, MaxTokens: 5}},
		{`{"model":"m","prompt":["a", "b"],"n":3}`, Envelope{Model: "m", N: 6, Messages: 2, PromptBytes: 10}},
		{`{"model":"m","n":3,"prompt":[ [1,2], [3]]}`, Envelope{Model: "m", N: 6, Messages: 2, PromptBytes: 13}},
		{`{"model":"m","prompt":[1,2],"n":3}`, Envelope{Model: "m", N: 3, Messages: 2, PromptBytes: 5}},
		{`{"model":"m","max_completion_tokens":7,"max_tokens":5}`, Envelope{Model: "m", N: 1, MaxTokens: 7}},
		{`{"model":"m","max_tokens":5,"max_output_tokens":6}`, Envelope{Model: "m", N: 1, MaxTokens: 6}},
		{"\xef\xbb\xbf {\"model\":\"m\"}", Envelope{Model: "m", N: 1}},
		{`{"model":"m","input":"a\ud83d b\udc00\ud800\ud83d\ude00\ud83d","x\ud800":{"\udfff":1}}`, Envelope{Model: "m", N: 1, Messages: 1, PromptBytes: 41}},
		{`{"model":"m","max_tokens":-1}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","max_tokens":5,"max_completion_tokens":-1.0}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","n":2.0,"best_of":2e0,"top_logprobs":5.0}`, Envelope{Model: "m", N: 2}},
		{`{"model":"m","max_tokens":16.0}`, Envelope{Model: "m", N: 1, MaxTokens: 16}},
		{`{"model":"m","max_output_tokens":1e3}`, Envelope{Model: "m", N: 1, MaxTokens: 1000}},
		{`{"model":"m","max_tokens":null,"n":null,"stream":null,"user":null,"messages":null}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","messages":[{"role":"user"},{"role":"x","content":[1,2,{}]}]}`, Envelope{Model: "m", N: 1, Messages: 2, PromptBytes: 49}},
		{`{"model":"m","messages":[]}`, Envelope{Model: "m", N: 1, PromptBytes: 2}},
		{`{"model":"m","prompt":"hi"}`, Envelope{Model: "m", N: 1, Messages: 1, PromptBytes: 4}},
		{`{"model":"m","input":["a","b","c"]}`, Envelope{Model: "m", N: 1, Messages: 3, PromptBytes: 13}},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, Envelope{Model: "m", N: 1, Stream: true, IncludeUsage: true}},
		{`{"model":"m","stream":true,"stream_options":{"x":{"include_usage":true},"include_usage":false}}`, Envelope{Model: "m", N: 1, Stream: true}},
		{`{"model":"m","a":-0.5e-7,"b":1E5,"c":[0,-0,1.0],"d":1e307,"e":1e-9999}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","x":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","x":{"model":"other","Model":1},"y":{"k":1,"k":2}}`, Envelope{Model: "m", N: 1}},
		{`{"model":"m","modell":1,"models":["a"],"mode":2}`, Envelope{Model: "m", N: 1}},
	} {
		e, err := Peek([]byte(x.body))
		if err != nil {
			t.Errorf("%s: %v", x.body, err)
			continue
		}
		e.model, e.options, e.usage, e.bare, e.sections = span{}, span{}, span{}, false, [sections]span{}
		if e != x.want {
			t.Errorf("%s:\n%+v, want\n%+v", x.body, e, x.want)
		}
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":1`, i)
	}
	return b.String()
}

func TestPeekRefuses(t *testing.T) {
	for _, x := range []struct {
		name, body string
		code       Code
		param      string
		says       string
	}{
		{"empty", "", InvalidJSON, "", "empty"},
		{"blank", " \n", InvalidJSON, "", "empty"},
		{"not json", "hello", InvalidJSON, "", "object"},
		{"array", "[]", InvalidJSON, "", "object"},
		{"Latin-1", "{\"model\":\"Perch\xe9\"}", InvalidJSON, "", "byte 15 (0xe9) is not valid UTF-8: encode it as UTF-8"},
		{"a character cut in two", "{\"model\":\"\u00e9\xe2\x82\"}", InvalidJSON, "", "byte 12 (0xe2) is not valid UTF-8"},
		{"quotes of a Unix shell", `'{"model":"m"}'`, InvalidJSON, "", "single quote, which the shell has not taken away"},
		{"a key twice", `{"model":"m","n":1,"n":2}`, InvalidJSON, "/n", "the key n appears twice"},
		{"encoded twice", `"{\"model\":\"m\"}"`, InvalidJSON, "", "not a string: it may have been encoded twice"},
		{"form", "model=tiny", InvalidJSON, "", "object"},
		{"two byte order marks", "\xef\xbb\xbf\xef\xbb\xbf{\"model\":\"m\"}", InvalidJSON, "", "object"},
		{"byte order mark alone", "\xef\xbb\xbf", InvalidJSON, "", "empty"},
		{"utf-16", "\xff\xfe{\x00", InvalidJSON, "", "UTF-8"},
		{"invalid utf-8", "{\"model\":\"m\xff\"}", InvalidJSON, "", "UTF-8"},
		{"surrogate in utf-8", "{\"model\":\"\xed\xa0\x80\"}", InvalidJSON, "", "UTF-8"},
		{"overlong", "{\"model\":\"\xc0\x80\"}", InvalidJSON, "", "UTF-8"},
		{"trailing data", `{"model":"m"}{}`, InvalidJSON, "", "follows"},
		{"trailing comma", `{"model":"m",}`, InvalidJSON, "", "string is expected"},
		{"leading comma", `{,"model":"m"}`, InvalidJSON, "", "string is expected"},
		{"cut", `{"model":"m"`, InvalidJSON, "", "ends"},
		{"cut in string", `{"model":"m`, InvalidJSON, "", "ends inside a string"},
		{"cut in array", `{"model":"m","a":[1`, InvalidJSON, "", "ends"},
		{"cut before value", `{"model":`, InvalidJSON, "", "ends"},
		{"single quotes", `{'model':'m'}`, InvalidJSON, "", "string is expected"},
		{"bare key", `{model:"m"}`, InvalidJSON, "", "string is expected"},
		{"no colon", `{"model" "m"}`, InvalidJSON, "", "colon"},
		{"comment", `{"model":"m"/**/}`, InvalidJSON, "", "comma"},
		{"NaN", `{"model":"m","x":NaN}`, InvalidJSON, "", "value"},
		{"Infinity", `{"model":"m","x":-Infinity}`, InvalidJSON, "", "value"},
		{"True", `{"model":"m","x":True}`, InvalidJSON, "", "value"},
		{"truex", `{"model":"m","x":truex}`, InvalidJSON, "", "comma"},
		{"leading zero", `{"model":"m","x":01}`, InvalidJSON, "", "value"},
		{"plus", `{"model":"m","x":+1}`, InvalidJSON, "", "value"},
		{"dot", `{"model":"m","x":1.}`, InvalidJSON, "", "number"},
		{"no exponent", `{"model":"m","x":1e}`, InvalidJSON, "", "number"},
		{"infinite by its digits", `{"model":"m","x":12345e305}`, InvalidJSON, "", "too large"},
		{"infinite", `{"model":"m","x":1e309}`, InvalidJSON, "", "too large"},
		{"infinite too", `{"model":"m","x":1e99999999999999999999}`, InvalidJSON, "", "too large"},
		{"long number", `{"model":"m","x":1` + strings.Repeat("0", 64) + `}`, InvalidJSON, "", "too large"},
		{"newline in string", "{\"model\":\"a\nb\"}", InvalidJSON, "", "control"},
		{"NUL in string", "{\"model\":\"a\x00b\"}", InvalidJSON, "", "control"},
		{"control far in a string", "{\"model\":\"m\",\"x\":\"aaaaaaaaaaaaaaaaaaaaaaa\x1fbbbbbbbbbbbbbbbbbb\"}", InvalidJSON, "", "control"},
		{"bad escape", `{"model":"\x"}`, InvalidJSON, "", "escape"},
		{"bad unicode escape", `{"model":"\u12g4"}`, InvalidJSON, "", "escape"},
		{"lone high surrogate", `{"model":"\ud800"}`, InvalidValue, "/model", "surrogate"},
		{"lone low surrogate", `{"model":"a\udc00b"}`, InvalidValue, "/model", "surrogate"},
		{"two high surrogates", `{"model":"\ud800\ud800"}`, InvalidValue, "/model", "surrogate"},
		{"half of an escape behind a surrogate", `{"model":"m","x":"\ud800\u12"}`, InvalidJSON, "", "escape"},
		{"deep", `{"model":"m","x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, InvalidJSON, "", "deeper"},
		{"very deep", `{"model":"m","x":` + strings.Repeat(`{"a":`, 100_000), InvalidJSON, "", "deeper"},
		{"duplicate model", `{"model":"cheap","model":"secret"}`, InvalidJSON, "/model", "twice"},
		{"duplicate model, escaped", `{"model":"cheap","mo\u0064el":"secret"}`, InvalidJSON, "/model", "twice"},
		{"duplicate model, null", `{"model":"cheap","model":null}`, InvalidJSON, "/model", "twice"},
		{"duplicate other", `{"model":"m","stream":true,"stream":false}`, InvalidJSON, "/stream", "twice"},
		{"duplicate behind many", `{"model":"m"` + manyKeys(100) + `,"k77":2}`, InvalidJSON, "/k77", "twice"},
		{"duplicate with slash", `{"model":"m","a/b~":1,"a/b~":1}`, InvalidJSON, "/a~1b~0", "twice"},
		{"many keys", `{"model":"m"` + manyKeys(200) + `}`, InvalidJSON, "", "more than 128"},
		{"no model", `{"messages":[]}`, MissingRequiredParameter, "model", "model"},
		{"empty object", `{}`, MissingRequiredParameter, "model", "model"},
		{"null model", `{"model":null}`, MissingRequiredParameter, "model", "model"},
		{"empty model", `{"model":""}`, MissingRequiredParameter, "model", "model"},
		{"Model", `{"Model":"m"}`, MissingRequiredParameter, "model", "case-sensitive, use model and not Model"},
		{"MODEL", `{"MODEL":"m"}`, MissingRequiredParameter, "model", "MODEL"},
		{"model and Model", `{"model":"m","Model":"x"}`, InvalidJSON, "/model", "ambiguous"},
		{"number model", `{"model":5}`, InvalidValue, "/model", "string"},
		{"list model", `{"model":["m"]}`, InvalidValue, "/model", "string"},
		{"stream string", `{"model":"m","stream":"true"}`, InvalidValue, "/stream", "boolean"},
		{"stream number", `{"model":"m","stream":1}`, InvalidValue, "/stream", "boolean"},
		{"options list", `{"model":"m","stream_options":[]}`, InvalidValue, "/stream_options", "object"},
		{"usage string", `{"model":"m","stream_options":{"include_usage":"x"}}`, InvalidValue, "/stream_options/include_usage", "boolean"},
		{"usage twice", `{"model":"m","stream_options":{"include_usage":true,"include_\u0075sage":false}}`, InvalidJSON, "/stream_options/include_usage", "twice"},
		{"options cut", `{"model":"m","stream_options":{"a":1`, InvalidJSON, "/stream_options", "ends"},
		{"n fraction", `{"model":"m","n":1.5}`, InvalidValue, "/n", "integer"},
		{"n negative", `{"model":"m","n":-1}`, InvalidValue, "/n", "integer"},
		{"n zero", `{"model":"m","n":0}`, InvalidValue, "/n", "integer"},
		{"long model", `{"model":"` + strings.Repeat("m", 600) + `"}`, InvalidValue, "/model", "longer"},
		{"n huge", `{"model":"m","n":99999999999}`, InvalidValue, "/n", "integer"},
		{"max_tokens string", `{"model":"m","max_tokens":"100"}`, InvalidValue, "max_tokens", "It is a string: send the number without quotes."},
		{"max_completion_tokens string", `{"model":"m","max_completion_tokens":""}`, InvalidValue, "max_completion_tokens", "is a string"},
		{"max_output_tokens list", `{"model":"m","max_output_tokens":[1]}`, InvalidValue, "max_output_tokens", "max_output_tokens must be an integer from 0 to 2147483647, or -1 for no bound."},
		{"max_tokens fraction", `{"model":"m","max_tokens":16.5}`, InvalidValue, "max_tokens", "integer"},
		{"max_tokens huge", `{"model":"m","max_tokens":2147483648}`, InvalidValue, "max_tokens", "integer"},
		{"max_tokens huge exponent", `{"model":"m","max_tokens":1e300}`, InvalidValue, "max_tokens", "integer"},
		{"max_tokens bool", `{"model":"m","max_tokens":true}`, InvalidValue, "max_tokens", "integer"},
	} {
		_, err := Peek([]byte(x.body))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if e.Code != x.code || e.Param != x.param || e.Status != 400 || !strings.Contains(e.Message, x.says) {
			t.Errorf("%s: %+v", x.name, e)
		}
	}
}

func spliced(t testing.TB, body, name string, usage bool) string {
	t.Helper()
	e, err := Peek([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.Join(e.Splice(nil, []byte(body), name, usage), nil))
}

func TestSplice(t *testing.T) {
	for _, x := range []struct {
		body  string
		usage bool
		want  string
	}{
		{`{"model":"tiny","a":1}`, false, `{"model":"tiny","a":1}`},
		{"\xef\xbb\xbf{\"model\":\"t/tiny\",\"a\":\"\\ud83d\"}", false, `{"model":"tiny","a":"\ud83d"}`},
		{"\xef\xbb\xbf{\"model\":\"tiny\"}", false, `{"model":"tiny"}`},
		{`{"model":"tin\u0079","a":1}`, false, `{"model":"tin\u0079","a":1}`},
		{`{"a":1, "model" : "t/tiny" }`, false, `{"a":1, "model" : "tiny" }`},
		{`{"model":"t/tiny","stream":true}`, true, `{"model":"tiny","stream_options":{"include_usage":true},"stream":true}`},
		{`{"model":"tiny","stream":true}`, true, `{"model":"tiny","stream_options":{"include_usage":true},"stream":true}`},
		{`{"model":"t/tiny"}`, true, `{"model":"tiny"}`}, // no stream, no chunk
		{`{"stream":true,"stream_options":{},"model":"t/tiny"}`, true, `{"stream":true,"stream_options":{"include_usage":true},"model":"tiny"}`},
		{`{"stream":true,"stream_options":{"x":1},"model":"tiny"}`, true, `{"stream":true,"stream_options":{"include_usage":true,"x":1},"model":"tiny"}`},
		{`{"stream":true,"stream_options":{"x":1,"include_usage":false},"model":"t/tiny"}`, true, `{"stream":true,"stream_options":{"x":1,"include_usage":true},"model":"tiny"}`},
		{`{"model":"t/tiny","stream":true,"stream_options":{"include_usage": null}}`, true, `{"model":"tiny","stream":true,"stream_options":{"include_usage": true}}`},
		{`{"model":"tiny","stream":true,"stream_options":null}`, true, `{"model":"tiny","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"model":"tiny","stream":true,"stream_options":{"include_usage":true}}`, true, `{"model":"tiny","stream":true,"stream_options":{"include_usage":true}}`},
	} {
		if got := spliced(t, x.body, "tiny", x.usage); got != x.want {
			t.Errorf("%s:\n%s, want\n%s", x.body, got, x.want)
		}
	}
	for more, asks := range map[string]bool{``: false, `,"stream":true`: true, `,"stream":false`: false, `,"stream":true,"stream_options":{"include_usage":true}`: false, `,"stream":true,"stream_options":{"include_usage":false}`: true} {
		e, err := Peek([]byte(`{"model":"m"` + more + `}`))
		if err != nil || e.AsksUsage() != asks || strings.Contains(spliced(t, `{"model":"m"`+more+`}`, "m", true), `"include_usage":true`) != (asks || e.IncludeUsage) {
			t.Errorf("%s: asks for usage %v, %v", more, e.AsksUsage(), err)
		}
	}
	if got := spliced(t, `{"model":"m"}`, "a\"b", false); got != `{"model":"a\"b"}` {
		t.Error(got)
	}
}

// FuzzPeek holds Peek against encoding/json/v2: what Peek takes, it takes with
// the same meaning, and Splice changes what it says and nothing else.
func FuzzPeek(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","stream":true,"n":2,"stream_options":{"include_usage":false},"messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"cheap","mo\u0064el":"secret"}`, `{"Model":"x"}`, `{"model":"\ud83d\ude00","x":[1e5,-0.1,{"a":null}]}`,
		`{"model":"m","stream_options":null,"stream":true}`, `{"stream":true,"model":"m","stream_options":{}}`, "\xef\xbb\xbf{\"model\":\"m\"}", `{"model":"m","messages":"\ud83d"}`, "{\"model\":\"aaaaaaaaaaaaaaa\x1f\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		type meaning struct {
			Model    string            `json:"model"`
			Stream   bool              `json:"stream"`
			N        *int              `json:"n"`
			Messages jsontext.Value    `json:"messages"`
			Options  map[string]any    `json:"stream_options"`
			Rest     map[string]any    `json:",inline"`
			_        map[string]string `json:"-"`
		}
		read := func(b []byte) (m meaning, err error) {
			err = json.Unmarshal(b[skipMark(b):], &m, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
			return m, err
		}
		e, err := Peek(body)
		var top map[string]jsontext.Value
		strict := json.Unmarshal(body[skipMark(body):], &top, jsontext.AllowInvalidUTF8(true)) // no duplicate at any depth
		if err != nil {
			var typed *Error
			if !errors.As(err, &typed) || typed.Status != 400 {
				t.Fatal(err)
			}
			return
		}
		if !json1Valid(body) {
			t.Fatalf("encoding/json/v2 refuses %q", body)
		}
		m, err := read(body)
		if err != nil {
			if strict != nil {
				return // a nested duplicate
			}
			t.Fatalf("%q: %v", body, err)
		}
		n := 1
		if m.N != nil {
			n = *m.N
		}
		usage, _ := m.Options["include_usage"].(bool)
		if m.Model != e.Model || m.Stream != e.Stream || n != e.N || usage != e.IncludeUsage {
			t.Fatalf("%q: %+v, v2 reads %+v", body, e, m)
		}
		out := bytes.Join(e.Splice(nil, body, "other/name", true), nil)
		e2, err := Peek(out)
		if err != nil {
			if strings.Contains(err.Error(), "more than") { // the key that was added is one too many
				return
			}
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if e2.Model != "other/name" || e2.Stream != e.Stream || e2.IncludeUsage != e.Stream && !e.IncludeUsage || e2.Messages != e.Messages ||
			e2.PromptBytes != e.PromptBytes || e2.N != e.N {
			t.Fatalf("%q became %q: %+v", body, out, e2)
		}
		back := bytes.Join(e2.Splice(nil, out, e.Model, false), nil)
		if !e.AsksUsage() {
			m2, err := read(back)
			if err != nil || m2.Model != m.Model || !bytes.Equal(m2.Messages, m.Messages) {
				t.Fatalf("%q came back as %q", body, back)
			}
		}
	})
}

func json1Valid(b []byte) bool {
	return jsontext.Value(b[skipMark(b):]).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func newForm(parts ...string) []byte {
	return []byte("--B\r\n" + strings.Join(parts, "\r\n--B\r\n") + "\r\n--B--\r\n")
}

const (
	modelPart = "Content-Disposition: form-data; name=\"model\"\r\n\r\nt/whisper"
	filePart  = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--b\r\n\x00\xff"
)

func TestPeekMultipart(t *testing.T) {
	const ct = `multipart/form-data; boundary=B`
	body := newForm(filePart, modelPart, "Content-Disposition: form-data; name=\"stream\"\r\n\r\ntrue",
		"Content-Disposition: form-data; name=\"prompt\"\r\n\r\n")
	e, err := PeekMultipart(ct, body)
	if err != nil || e.Model != "t/whisper" || !e.Stream {
		t.Fatalf("%+v %v", e, err)
	}
	if got := bytes.Join(e.Splice(nil, body, "whisper", true), nil); string(got) != strings.Replace(string(body), "t/whisper", "whisper", 1) {
		t.Errorf("%q", got)
	}
	for _, x := range []struct {
		name, ct string
		body     []byte
		code     Code
	}{
		{"no model", ct, newForm(filePart), MissingRequiredParameter},
		{"empty model", ct, newForm("Content-Disposition: form-data; name=\"model\"\r\n\r\n"), MissingRequiredParameter},
		{"two models", ct, newForm(modelPart, modelPart), InvalidRequest},
		{"Model", ct, newForm("Content-Disposition: form-data; name=\"Model\"\r\n\r\nx"), MissingRequiredParameter},
		{"model is a file", ct, newForm("Content-Disposition: form-data; name=\"model\"; filename=\"x\"\r\n\r\nx"), InvalidRequest},
		{"extended name", ct, newForm("Content-Disposition: form-data; name*=utf-8''model\r\n\r\nx"), InvalidRequest},
		{"two dispositions", ct, newForm("Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nx"), InvalidRequest},
		{"no disposition", ct, newForm("X: y\r\n\r\nx"), InvalidRequest},
		{"attachment", ct, newForm("Content-Disposition: attachment; name=\"model\"\r\n\r\nx"), InvalidRequest},
		{"newline in model", ct, newForm("Content-Disposition: form-data; name=\"model\"\r\n\r\na\nb"), InvalidRequest},
		{"long model", ct, newForm("Content-Disposition: form-data; name=\"model\"\r\n\r\n" + strings.Repeat("x", 300)), InvalidRequest},
		{"preamble without a line end", ct, append([]byte("hi"), newForm(modelPart)...), InvalidRequest},
		{"preamble with a bare LF", ct, append([]byte("hi\n"), newForm(modelPart)...), InvalidRequest},
		{"data at the end", ct, append(bytes.TrimRight(newForm(modelPart), "\r\n"), "more"...), InvalidRequest},
		{"a form behind the end", ct, append(newForm(modelPart), newForm(modelPart)...), InvalidRequest},
		{"bare LF behind a boundary", ct, []byte("--B\n" + modelPart + "\r\n--B--\r\n"), InvalidRequest},
		{"bare LF in a head", ct, newForm("Content-Disposition: form-data; name=\"model\"\nX: y\r\n\r\nx"), InvalidRequest},
		{"extended name behind a quoted one", ct, newForm("Content-Disposition: form-data; name=\"a\"; NAME *=utf-8''model\r\n\r\nx"), InvalidRequest},
		{"name in pieces", ct, newForm("Content-Disposition: form-data; name*0=mo; name*1=del\r\n\r\nx"), InvalidRequest},
		{"extended name behind an escaped quote", ct, newForm("Content-Disposition: form-data; filename=\"a\\\"\"; name*=utf-8''model\r\n\r\nx"), InvalidRequest},
		{"no end", ct, []byte("--B\r\n" + modelPart), InvalidRequest},
		{"cut head", ct, []byte("--B\r\nContent-Dis"), InvalidRequest},
		{"nothing", ct, nil, InvalidRequest},
		{"boundary with tail", ct, newForm(modelPart + "\r\n--Bx\r\n"), InvalidRequest},
		{"many parts", ct, newForm(strings.Split(strings.Repeat("Content-Disposition: form-data; name=\"a[]\"\r\n\r\nx|", 70), "|")[:70]...), InvalidRequest},
		{"no boundary", "multipart/form-data", newForm(modelPart), InvalidRequest},
		{"json", "application/json", newForm(modelPart), InvalidRequest},
	} {
		_, err := PeekMultipart(x.ct, x.body)
		var e *Error
		if !errors.As(err, &e) || e.Code != x.code {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

func TestFormsAsClientsSendThem(t *testing.T) {
	const ct = `multipart/form-data; boundary="B"`
	clean := string(newForm(modelPart))
	clean = clean[:len(clean)-2]
	file := func(disposition string) string {
		return "Content-Disposition: form-data; " + disposition + "\r\nContent-Type: audio/wav\r\n\r\nRIFF"
	}
	for _, x := range []struct{ name, body, want string }{
		{"preamble", "This is a message in MIME format.\r\n\r\n" + clean, clean},
		{"an empty line first", "\r\n" + clean, clean},
		{"epilogue", clean + "\r\nend\nof it", clean + "\r\n"},
		{"blanks behind the end", clean + " \t", clean},
		{"no line end at the end", clean, clean},
		{"blanks behind a boundary", strings.Replace(clean, "--B\r\n", "--B \t\r\n", 1), strings.Replace(clean, "--B\r\n", "--B \t\r\n", 1)},
		{".NET", string(newForm(modelPart, file("name=file; filename=\"a.wav\"; filename*=UTF-8''a.wav"))), ""},
		{"filename* alone", string(newForm(modelPart, file("name=\"file\"; filename*=UTF-8''%e2%82%ac.wav"))), ""},
		{"name* in a file's name", string(newForm(modelPart, file("name=\"file\"; filename=\"x; name*=model\""))), ""},
	} {
		e, err := PeekMultipart(ct, []byte(x.body))
		if err != nil || e.Model != "t/whisper" {
			t.Errorf("%s: %+v %v", x.name, e, err)
			continue
		}
		if x.want == "" {
			x.want = x.body
		}
		if got := string(bytes.Join(e.Splice(nil, []byte(x.body), "whisper", true), nil)); got != strings.Replace(x.want, "t/whisper", "whisper",
			1) {
			t.Errorf("%s: %q", x.name, got)
		}
	}
}

func FuzzPeekMultipart(f *testing.F) {
	f.Add(newForm(filePart, modelPart))
	f.Add(newForm(modelPart))
	f.Add([]byte("--B--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := PeekMultipart("multipart/form-data; boundary=B", body)
		if err != nil {
			return
		}
		out := bytes.Join(e.Splice(nil, body, "another", false), nil)
		e2, err := PeekMultipart("multipart/form-data; boundary=B", out)
		if err != nil || e2.Model != "another" || e2.Stream != e.Stream {
			t.Fatalf("%q became %q: %+v %v", body, out, e2, err)
		}
	})
}

func chatBody(size int) []byte {
	text := strings.Repeat("You are a helpful assistant, please answer. ", size/44+1)[:size]
	return []byte(`{"model":"tiny","messages":[{"role":"system","content":"` + text + `"},{"role":"user","content":"hi"}],"temperature":0.7,"max_tokens":256,"stream":true}`)
}

// BenchmarkPeek reads each body to its end, up to 1 MiB: 100,000 rounds (-benchtime 100000x)
// read 100 GB, and as much again in BenchmarkPeekMedia.
func BenchmarkPeek(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		body := chatBody(size)
		b.Run(fmt.Sprint(len(body)), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Peek(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
