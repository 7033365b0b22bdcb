package controlstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestLinesToTheLetter: the JSON must not change, because the versions may differ.
func TestLinesToTheLetter(t *testing.T) {
	for want, v := range map[string]any{
		`{"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1"}}`:                                FromPod{Hello: &Shim{"10.0.0.7", 8080, "v1", false}},
		`{"hello":{"pod_ip":"10.0.0.7","port":8080,"version":"v1","folders":true}}`:                 FromPod{Hello: &Shim{"10.0.0.7", 8080, "v1", true}},
		`{"stage":{"id":1,"source":"az://a/b","files":["*.py"],"digest":"sha256:1"}}`:               FromPod{Stage: &Stage{1, "az://a/b", []string{"*.py"}, "sha256:1"}},
		`{"welcome":{"node":"n","uid":"u","store":"/s"}}`:                                           ToPod{Welcome: &Welcome{"n", "u", "/s"}},
		`{"verify":{"id":1,"digest":"sha256:1"}}`:                                                   FromPod{Verify: &Verify{1, "sha256:1"}},
		`{"verified":{"id":1,"damaged":true,"error":"e"}}`:                                          ToPod{Verified: &Verified{1, true, "e"}},
		`{"verified":{"id":1}}`:                                                                     ToPod{Verified: &Verified{ID: 1}},
		`{"staging":{"id":1,"done":1,"total":2,"state":"fetching"}}`:                                ToPod{Staging: &Staging{ID: 1, Done: 1, Total: 2, State: "fetching"}},
		`{"staged":{"id":1,"path":"/p","digest":"sha256:1","bytes":3,"files":["a","b/c"]}}`:         ToPod{Staged: &Staged{1, "/p", "sha256:1", 3, []string{"a", "b/c"}, false}},
		`{"staged":{"id":1,"path":"/p","digest":"sha256:1","bytes":3,"files":["a"],"folder":true}}`: ToPod{Staged: &Staged{1, "/p", "sha256:1", 3, []string{"a"}, true}},
		`{"failed":{"id":1,"kind":"k","message":"m","fix":"f"}}`:                                    ToPod{Failed: &Failed{1, "k", "m", "f"}},
		`{"stop":{"seconds":30,"reason":"r"}}`:                                                      ToPod{Stop: &Drain{30, "r"}},
	} {
		if got := mustJSON(t, v); got != want {
			t.Errorf("%+v is %s; want %s", v, got, want)
		}
	}
	// Unknown parts are skipped.
	var m ToPod
	if err := json.Unmarshal([]byte(`{"later":{"a":1},"stop":{"seconds":1,"how":2}}`), &m); err != nil || m.Stop == nil || m.Stop.Seconds != 1 {
		t.Errorf("a line of a later version: %+v, %v", m, err)
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
		for line := range bytes.Lines(b) {
			var m, again FromPod
			if json.Unmarshal(line, &m) != nil {
				return
			}
			if m.Stage != nil && m.Stage.Check() == nil && (len(m.Stage.Source) > MaxSource || m.Stage.ID < 1) {
				t.Fatalf("passed: %+v", m.Stage)
			}
			// A line that was read can be written, and is read back the same.
			wire, err := json.Marshal(m)
			var unsupported *json.MarshalerError
			if errors.As(err, &unsupported) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(wire, &again); err != nil {
				t.Fatalf("%v of %q", err, b)
			}
			if x, y := string(wire), mustJSON(t, again); x != y {
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
