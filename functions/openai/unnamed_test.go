package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestPeekUnnamed(t *testing.T) {
	for _, c := range []struct{ body, want, usage string }{ // as the engine gets it, and with usage
		{`{}`, `{"model":"m"}`, `{"model":"m"}`},
		{` { } `, ` {"model":"m" } `, ` {"model":"m" } `},
		{`{"stream":true}`, `{"model":"m","stream":true}`, `{"model":"m","stream_options":{"include_usage":true},"stream":true}`},
		{`{"stream":true,"stream_options":{}}`, `{"model":"m","stream":true,"stream_options":{}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"model":null,"n":1}`, `{"model":"m","n":1}`, `{"model":"m","n":1}`},
		{`{"model":"","n":1}`, `{"model":"m","n":1}`, `{"model":"m","n":1}`},
		{`{"n":1,"model":"x","stream":true}`, `{"n":1,"model":"m","stream":true}`, `{"n":1,"model":"m","stream_options":{"include_usage":true},"stream":true}`},
	} {
		env, err := PeekUnnamed([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		for usage, want := range map[bool]string{false: c.want, true: c.usage} {
			got := string(bytes.Join(env.Splice(nil, []byte(c.body), "m", usage), nil))
			if got != want || !json.Valid([]byte(got)) {
				t.Errorf("%s, usage %v: %s, want %s", c.body, usage, got, want)
			}
		}
	}
	for _, bad := range []string{``, `[]`, `{"model":1}`, `{"model":"a","model":"b"}`, `{"model":"a","Model":"b"}`, `{"Model":"a"}`, `{} x`} {
		if _, err := PeekUnnamed([]byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestPeekMultipartUnnamed(t *testing.T) {
	const kind = "multipart/form-data; boundary=b"
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	for body, want := range map[string]string{
		part("language", "en") + "--b--\r\n": part("model", "m") + part("language", "en") + "--b--\r\n",
		"--b--":                              part("model", "m") + "--b--",
		part("model", "x") + part("language", "en") + "--b--": part("model", "m") + part("language", "en") + "--b--",
	} {
		env, err := PeekMultipartUnnamed(kind, []byte(body))
		if err != nil {
			t.Errorf("%q: %v", body, err)
			continue
		}
		got := string(bytes.Join(env.Splice(nil, []byte(body), "m", false), nil))
		if got != want {
			t.Errorf("%q: %q", body, got)
		}
		if again, err := PeekMultipart(kind, []byte(got)); err != nil || again.Model != "m" {
			t.Errorf("%q: %v %q", got, err, again.Model)
		}
	}
	if _, err := PeekMultipartUnnamed(kind, []byte("nothing")); err == nil {
		t.Error("no form")
	}
}

// Whatever the body, the engine gets one model, and it is ours.
func FuzzUnnamed(f *testing.F) {
	for _, s := range []string{`{}`, `{"model":"x","stream":true}`, `{"stream":true,"stream_options":{"a":1}}`, `{"Model":1}`, ` {"a":[{}]} `} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		env, err := PeekUnnamed([]byte(body))
		if err != nil {
			return
		}
		got := bytes.Join(env.Splice(nil, []byte(body), "ours", true), nil)
		again, err := PeekUnnamed(got)
		if err != nil || again.Model != "ours" || env.Stream && !again.IncludeUsage {
			if strings.Count(body, ",") < MaxKeys-2 { // one key more may be one too many
				t.Errorf("%q became %q: %v %+v", body, got, err, again)
			}
		}
	})
}
