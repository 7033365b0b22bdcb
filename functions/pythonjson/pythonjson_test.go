package pythonjson_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/pythonjson"
)

func TestStandard(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{"a": NaN, "b":Infinity,"c":[-Infinity,NaN]}`, `{"a": 0  , "b":null    ,"c":[null     ,0  ]}`},
		{`{"a": "NaN, Infinity"}`, `{"a": "NaN, Infinity"}`},
		{`{"a": "\" NaN \\", "b":NaN}`, `{"a": "\" NaN \\", "b":0  }`},
		{`{"a": "\ud83d", "b": "\uDE00x", "c": "\ud83d\ude00", "d": "\ud83d\ud83d\ude00", "e": "\\ud83d"}`, `{"a": "\ufffd", "b": "\ufffdx", "c": "\ud83d\ude00", "d": "\ufffd\ud83d\ude00", "e": "\\ud83d"}`},
		{"[NaN\n]", "[0  \n]"},
		{"NaN", "0  "},
		{`[1NaN, -NaN, NaN1, nan, +Infinity, {NaN: 1}]`, `[1NaN, -NaN, NaN1, nan, +Infinity, {NaN: 1}]`},
		{``, ``}, {`"`, `"`}, {`"\`, `"\`}, {`"\ud83`, `"\ud83`},
	} {
		in := []byte(tc.in)
		if got := string(pythonjson.Standard(in)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.in, got, tc.want)
		}
		if string(in) != tc.in {
			t.Errorf("%s was changed", tc.in)
		}
	}
}

func TestWithNulls(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": NaN, "b":[-Infinity,Infinity], "c": "NaN \ud83d"}`: `{"a": null, "b":[null,null], "c": "NaN \ufffd"}`,
		`{"a": 1}`: `{"a": 1}`, `NaN`: `null`, ``: ``,
	} {
		if got := string(pythonjson.WithNulls([]byte(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// What Python's json takes is taken, and what it refuses is refused with its place.
func TestCheckObject(t *testing.T) {
	for _, good := range []string{`{}`, ` {"a": NaN} `, `{"rope": {"factor": Infinity, "low": -Infinity}}`, `{"a": "\ud83d"}`, `{"a": 1, "a": 2}`, `{"a": 1e999}`, "{\"a\":\t\"\x7f\"}\n"} {
		if err := pythonjson.CheckObject([]byte(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, tc := range []struct{ in, want string }{
		{"{\n  \"a\": 1,\n  \"b\": nan\n}", "line 3, column 9"},
		{`{"a": 1NaN}`, "line 1, column 8"},
		{`{"a": 1,}`, "line 1, column 8"},
		{"{\n\"ä\": 'x'}", "line 2, column 6"},
		{`{"a": -NaN}`, "line 1, column "},
		{`{"a": +Infinity}`, "line 1, column 7"},
		{`{} {}`, "line 1, column 4"},
		{`{"a": 1`, "line 1, column 8"},
		{"{\"a\": \"\xff\"}", "line 1, column 8"},
		{"\ufeff{}", "line 1, column 1"},
		{"{\"a\": \"x\ny\"}", "line 1, column 9"},
		{``, "line 1, column 1"},
		{`[]`, "not a JSON object"}, {`NaN`, "not a JSON object"}, {`null`, "not a JSON object"},
	} {
		if err := pythonjson.CheckObject([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.in, err, tc.want)
		}
	}
}

func FuzzStandard(f *testing.F) {
	for _, s := range []string{`{"a": NaN}`, `[-Infinity, "\ud83d\\"]`, `"\`, `NaN`, `{"\ud83d": Infinity}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := pythonjson.Standard([]byte(s))
		if len(got) != len(s) {
			t.Errorf("%q became %q", s, got)
		}
		if json.Valid([]byte(s)) && !json.Valid(got) {
			t.Errorf("%q is valid, %q is not", s, got)
		}
	})
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var v struct{ A float64 }
	if err := pythonjson.ReadFile(write("good", `{"a": 1, "b": NaN}`), 18, &v); err != nil || v.A != 1 {
		t.Error(v, err)
	}
	for path, want := range map[string]string{
		write("large", `{"a": 1, "b": 22222}`): "larger than 18 bytes", dir: "no regular file", write("bad", "{"): "line 1, column 2: it ends in the middle",
		filepath.Join(dir, "none"): "no such file",
	} {
		if err := pythonjson.ReadFile(path, 18, &v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}
