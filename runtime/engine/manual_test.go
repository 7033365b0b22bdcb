package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions"
)

// The first 420 lines of what vLLM 0.32 says on `serve --help=all`.
func readHelp(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/vllm-help.txt")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// program is one that prints the help, and notes that it was asked.
func program(t *testing.T) (path, asked string) {
	t.Helper()
	dir := t.TempDir()
	path, asked = filepath.Join(dir, "vllm"), filepath.Join(dir, "asked")
	text := filepath.Join(dir, "help")
	if err := os.WriteFile(text, readHelp(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\" >> "+asked+"\ncat "+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, asked
}

var path = ManualOptions{Environ: func() []string { return []string{"PATH=/bin:/usr/bin"} }}

func TestManual(t *testing.T) {
	exe, asked := program(t)
	dir := t.TempDir()
	m := NewManual(dir, path)
	vllm := functions.EngineVLLM
	if err := m.Check(vllm, exe, []string{"--no-such-flag"}); err != nil {
		t.Errorf("nothing is known yet: %v", err)
	}
	if err := m.Learn(t.Context(), vllm, exe); err != nil {
		t.Fatal(err)
	}
	check := func(m *Manual) {
		t.Helper()
		for _, c := range []struct{ args, want string }{
			{"--api-server-count 2 -asc 2 --enable-log-requests --no-enable-log-requests", ""},
			{"--shutdown_timeout=3 -O3 -tp 2 -- --anything", ""},
			{"--shutdown-time 3", ""}, // argparse takes it
			{"--compilation-conf --chat-template {\"--x\":1}", "args: --compilation-conf is not a flag of vllm (" + exe + " serve --help=all lists them)"},
			{"--shutdwn-timeout 3", "args: --shutdwn-timeout is not a flag of vllm; did you mean --shutdown-timeout?"},
			{"--chat-templates x", "args: --chat-templates is not a flag of vllm; did you mean --chat-template?"},
			{"--uvicorn-access-log", "args: --uvicorn-access-log is not a flag of vllm; did you mean --disable-uvicorn-access-log?"},
			{"--zzzzz.a=1", "args: --zzzzz is not a flag of vllm (" + exe + " serve --help=all lists them)"},
		} {
			err := m.Check(vllm, exe, strings.Fields(c.args))
			if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("%s: %v\nwant %s", c.args, err, c.want)
			}
		}
	}
	check(m)
	check(NewManual(dir, ManualOptions{})) // from disk
	if b, _ := os.ReadFile(asked); string(b) != "serve --help=all\n" {
		t.Errorf("asked %q", b)
	}
	if !m.lacksFlag(vllm, exe, "--no-such-flag") || m.lacksFlag(vllm, exe, "--shutdown-timeout") ||
		(*Manual)(nil).lacksFlag(vllm, exe, "--x") {
		t.Error("lacks")
	}
	// Another version in its place is another environment.
	if err := os.WriteFile(exe, []byte("#!/bin/sh\necho other\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(vllm, exe, []string{"--no-such-flag"}); err != nil {
		t.Errorf("the old version's flags: %v", err)
	}
	if err := m.Learn(t.Context(), vllm, exe); err == nil {
		t.Error("one line was taken for a list of flags")
	}
	if m.Learn(t.Context(), functions.EngineEmber, exe) == nil {
		t.Error("ember has no such help")
	}
}

// What Check does not know is asked for once, and not at once.
func TestManualRun(t *testing.T) {
	exe, asked := program(t)
	m := NewManual(t.TempDir(), path)
	for range 20 {
		if err := m.Check(functions.EngineVLLM, exe, []string{"--no-such-flag"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.requests) != 1 {
		t.Fatalf("%d questions", len(m.requests))
	}
	if _, err := os.Stat(asked); err == nil {
		t.Error("asked by Check")
	}
	synctest.Test(t, func(t *testing.T) {
		// Nothing in it: it ends with its context.
		n := NewManual(t.TempDir(), ManualOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPrepareChecksFlags(t *testing.T) {
	p := programs()
	p.Manual = NewManual(t.TempDir(), ManualOptions{})
	r := Request{Spec: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--chat-templat=x", "--max-token", "1"}}, Path: "/m", Name: "m", Port: 1}
	if _, err := p.Prepare(r); err != nil {
		t.Fatal(err)
	}
	if err := p.Manual.Put(functions.EngineVLLM, "/bin/vllm", readHelp(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(r); err == nil || !strings.HasPrefix(err.Error(), "args: --max-token is not a flag of vllm") {
		t.Error(err)
	}
	// An older one that has no --shutdown-timeout gets none.
	old := strings.ReplaceAll(string(readHelp(t)), "--shutdown-timeout", "--other")
	if err := p.Manual.Put(functions.EngineVLLM, "/bin/vllm", []byte(old)); err != nil {
		t.Fatal(err)
	}
	r.Spec.Args = nil
	if c, err := p.Prepare(r); err != nil || strings.Contains(strings.Join(c.Argv, " "), "--shutdown-timeout") {
		t.Error(c.Argv, err)
	}
}

func FuzzParseHelp(f *testing.F) {
	f.Add("  --a, --no-a X\n  -b, --bb {c,d}  text --e\n")
	f.Fuzz(func(t *testing.T, s string) {
		for _, flag := range parseHelp(s) {
			if !strings.HasPrefix(flag, "--") || strings.ContainsAny(flag, " \n") {
				t.Errorf("%q", flag)
			}
		}
		nearestFlag(s, parseHelp(s))
	})
}
