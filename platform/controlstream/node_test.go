package controlstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/thaw-dev/thaw/functions"
)

func TestLinesComeAsTheyWereSaid(t *testing.T) {
	said := []any{
		FromPod{Hello: &Shim{PodIP: "10.0.0.7", Port: 8080, Version: "v1"}},
		FromPod{Stage: &Stage{ID: 1, Source: "az://acct/models/llama", Files: []string{"*.txt"}, Digest: "sha256:ab"}},
		FromPod{Status: &functions.ReplicaStatus{Team: "a", Model: "llama", State: functions.Ready, Phases: []functions.Span{{Start: 0.25}}}},
		ToPod{Welcome: &Welcome{Node: "a", UID: "u", Store: "/var/lib/thaw"}},
		ToPod{Staging: &Staging{ID: 1, Done: 1 << 40, Total: 1 << 41, State: "fetching", Note: "n"}},
		ToPod{Staged: &Staged{ID: 1, Path: "/p\n\u2028", Digest: "sha256:ab", Bytes: 5, Files: []string{"config.json"}}},
		ToPod{Failed: &Failed{ID: 1, Kind: "source_not_found", Message: "no", Fix: "do"}},
		ToPod{Stop: &Drain{Seconds: 0.5, Reason: "evicted"}},
	}
	var wire bytes.Buffer
	for _, v := range said {
		if err := WriteLine(&wire, v); err != nil {
			t.Fatal(err)
		}
	}
	if n := bytes.Count(wire.Bytes(), []byte("\n")); n != len(said) {
		t.Fatalf("%d lines for %d messages", n, len(said))
	}
	l := NewLines(iotest.OneByteReader(&wire))
	for _, want := range said {
		got := reflect.New(reflect.TypeOf(want))
		if err := l.Read(got.Interface()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Elem().Interface(), want) {
			t.Errorf("said %+v, heard %+v", want, got.Elem())
		}
	}
	if err := l.Read(new(ToPod)); err != io.EOF {
		t.Errorf("after the last line: %v", err)
	}
}

// TestLinesToTheLetter: the JSON must not change, because the versions may differ.
func TestLinesToTheLetter(t *testing.T) {
	for want, v := range map[string]any{
		`{"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1"}}`:                                FromPod{Hello: &Shim{"10.0.0.7", 8080, "v1", false}},
		`{"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1","folders":true}}`:                 FromPod{Hello: &Shim{"10.0.0.7", 8080, "v1", true}},
		`{"stage":{"id":1,"source":"az://a/b","files":["*.py"],"digest":"sha256:1"}}`:               FromPod{Stage: &Stage{1, "az://a/b", []string{"*.py"}, "sha256:1"}},
		`{"welcome":{"node":"n","uid":"u","store":"/s"}}`:                                           ToPod{Welcome: &Welcome{"n", "u", "/s"}},
		`{"staging":{"id":1,"done":1,"total":2,"state":"fetching"}}`:                                ToPod{Staging: &Staging{ID: 1, Done: 1, Total: 2, State: "fetching"}},
		`{"staged":{"id":1,"path":"/p","digest":"sha256:1","bytes":3,"files":["a","b/c"]}}`:         ToPod{Staged: &Staged{1, "/p", "sha256:1", 3, []string{"a", "b/c"}, false}},
		`{"staged":{"id":1,"path":"/p","digest":"sha256:1","bytes":3,"files":["a"],"folder":true}}`: ToPod{Staged: &Staged{1, "/p", "sha256:1", 3, []string{"a"}, true}},
		`{"failed":{"id":1,"kind":"k","message":"m","fix":"f"}}`:                                    ToPod{Failed: &Failed{1, "k", "m", "f"}},
		`{"stop":{"seconds":30,"reason":"r"}}`:                                                      ToPod{Stop: &Drain{30, "r"}},
	} {
		var b bytes.Buffer
		if err := WriteLine(&b, v); err != nil || b.String() != want+"\n" {
			t.Errorf("%+v is %s, %v; want %s", v, b.String(), err, want)
		}
	}
	// Unknown parts are skipped.
	var m ToPod
	if err := NewLines(strings.NewReader("\n\r\n{\"later\":{\"a\":1},\"stop\":{\"seconds\":1,\"how\":2}}\r\n")).Read(&m); err != nil || m.Stop == nil || m.Stop.Seconds != 1 {
		t.Errorf("a line of a later version: %+v, %v", m, err)
	}
}

func TestLinesThatAreNone(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":              "hello\n",
		"an array":             `[{"hello":{}}]` + "\n",
		"null":                 "null\n",
		"a number":             "7\n",
		"cut off":              `{"hello":{"pod_ip":"10`,
		"two in one line":      `{"hello":{}} {"hello":{}}` + "\n",
		"a wrong type":         `{"hello":{"port":"8080"}}` + "\n",
		"a number too great":   `{"stage":{"id":99999999999999999999}}` + "\n",
		"longer than the most": `{"stage":{"source":"` + strings.Repeat("a", MaxLine) + `"}}` + "\n",
		"never ends":           strings.Repeat("{", MaxLine+1),
		"deep":                 `{"later":` + strings.Repeat("[", 20000) + "\n",
	} {
		if err := NewLines(strings.NewReader(line)).Read(new(FromPod)); !errors.Is(err, ErrLine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("broken pipe")
	if err := NewLines(iotest.ErrReader(broken)).Read(new(FromPod)); !errors.Is(err, broken) {
		t.Errorf("a broken connection: %v", err)
	}
	var b bytes.Buffer
	if err := WriteLine(&b, ToPod{Failed: &Failed{Message: strings.Repeat("a", MaxLine)}}); !errors.Is(err, ErrLine) || b.Len() != 0 {
		t.Errorf("a line that nobody would read: %v, %d bytes written", err, b.Len())
	}
}

func TestStageThatMakesNoSense(t *testing.T) {
	good := func() Stage { return Stage{ID: 1, Source: "az://a/b", Files: []string{"*.txt"}} }
	if s := good(); s.Check() != nil {
		t.Fatal(s.Check())
	}
	for name, spoil := range map[string]func(*Stage){
		"no id":             func(s *Stage) { s.ID = 0 },
		"an id below":       func(s *Stage) { s.ID = -1 },
		"an id beyond":      func(s *Stage) { s.ID = 1<<30 + 1 },
		"no source":         func(s *Stage) { s.Source = "" },
		"a long source":     func(s *Stage) { s.Source = strings.Repeat("a", MaxSource+1) },
		"a line in it":      func(s *Stage) { s.Source = "az://a/b\nc" },
		"no UTF-8":          func(s *Stage) { s.Source = "az://\xff" },
		"many patterns":     func(s *Stage) { s.Files = make([]string, MaxFiles+1) },
		"an empty pattern":  func(s *Stage) { s.Files = []string{""} },
		"a long pattern":    func(s *Stage) { s.Files = []string{strings.Repeat("a", MaxPattern+1)} },
		"no pattern":        func(s *Stage) { s.Files = []string{"[a"} },
		"a pattern of NULs": func(s *Stage) { s.Files = []string{"a\x00"} },
		"a long digest":     func(s *Stage) { s.Digest = strings.Repeat("a", 200) },
	} {
		s := good()
		spoil(&s)
		if s.Check() == nil {
			t.Errorf("%s: passed", name)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1"}}` + "\n" + `{"stage":{"id":1,"source":"az://a/b","files":["*"]}}` + "\n"))
	f.Add([]byte("\n\n{}\n{\"status\":{\"phases\":[{}]}}"))
	f.Add([]byte(`{"status":{"spec":{}}}`))
	f.Add([]byte(`{"hello":null,"stage":{"id":1e3}}`))
	f.Add([]byte("[]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := NewLines(bytes.NewReader(b))
		for range 100 {
			var m FromPod
			err := l.Read(&m)
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrLine) {
					t.Fatalf("an error of no kind: %v", err)
				}
				return
			}
			if m.Stage != nil && m.Stage.Check() == nil && (len(m.Stage.Source) > MaxSource || m.Stage.ID < 1) {
				t.Fatalf("passed: %+v", m.Stage)
			}
			// A line that was read can be written, and is read back the same.
			var wire bytes.Buffer
			if err := WriteLine(&wire, m); err != nil {
				if len(b) < MaxLine/8 && !errors.Is(err, ErrLine) {
					var unsupported *json.MarshalerError
					if !errors.As(err, &unsupported) {
						t.Fatal(err)
					}
				}
				continue
			}
			var again FromPod
			if err := NewLines(&wire).Read(&again); err != nil {
				t.Fatalf("%v of %q", err, b)
			}
			if x, y := mustJSON(t, m), mustJSON(t, again); x != y {
				t.Fatalf("%s became %s", x, y)
			}
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
