package forkserver

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInterpreter(t *testing.T) {
	for _, c := range []struct{ head, want string }{
		{"#!/venv/bin/python\nimport x\n", "/venv/bin/python"},
		{"#!/venv/bin/python3.11 -sE\n", "/venv/bin/python3.11 -sE"},
		{"#!/bin/sh\n'''exec' \"/a long path/bin/python3\" \"$0\" \"$@\"\n' '''\nimport x", "/a long path/bin/python3"},
		{"#!/bin/sh\n'''exec' /venv/bin/python \"$0\" \"$@\"\n' '''\n", "/venv/bin/python"},
		{"#!/bin/sh\nexec vllm \"$@\"\n", ""},
		{"#!/usr/bin/env python3\n", ""},
		{"#!python\n", ""},
		{"#!\n", ""},
		{"\x7fELF", ""},
		{"", ""},
	} {
		if got := strings.Join(interpreter(c.head), " "); got != c.want {
			t.Errorf("%q: %q, want %q", c.head, got, c.want)
		}
	}
}

// makeVenv makes the skeleton of an installation.
func makeVenv(t *testing.T) Environment {
	t.Helper()
	dir := t.TempDir()
	bin, sitePackages := filepath.Join(dir, "bin"), filepath.Join(dir, "lib", "python3.11", "site-packages")
	for _, d := range []string{bin, filepath.Join(sitePackages, "vllm", "__pycache__")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(bin, "python"), "")
	write(t, filepath.Join(bin, "vllm"), "#!"+filepath.Join(bin, "python")+"\nprint()\n")
	for _, n := range []string{"a.py", "b.py", "c.txt"} {
		write(t, filepath.Join(sitePackages, "vllm", n), "")
	}
	e, err := FindEnvironment(filepath.Join(bin, "vllm"))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEnvironment(t *testing.T) {
	e := makeVenv(t)
	if !strings.HasSuffix(e.SitePackages, "site-packages") || !e.Writable() {
		t.Errorf("%+v", e)
	}
	if have, of := e.Bytecode("vllm", "none"); have != 0 || of != 2 {
		t.Errorf("%d of %d", have, of)
	}
	write(t, filepath.Join(e.SitePackages, "vllm", "__pycache__", "a.cpython-311.pyc"), "")
	write(t, filepath.Join(e.SitePackages, "vllm", "__pycache__", "b.cpython-310.pyc"), "")
	if have, of := e.Bytecode("vllm"); have != 1 || of != 2 {
		t.Errorf("%d of %d", have, of)
	}
	was := Fingerprint(e.InstallFiles())
	if was != Fingerprint(e.InstallFiles()) {
		t.Error("a fingerprint changes by itself")
	}
	write(t, e.Program, "#!/other\n")
	if was == Fingerprint(e.InstallFiles()) {
		t.Error("a changed program has the same fingerprint")
	}
	if _, err := FindEnvironment(e.Program); !errors.Is(err, ErrNoScript) {
		t.Error(err)
	}
	write(t, e.Program, "#!/no/such/python\n")
	if _, err := FindEnvironment(e.Program); err == nil || !strings.Contains(err.Error(), "not there") {
		t.Error(err)
	}
	if _, err := FindEnvironment(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("found nothing")
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "warm")
	a, err := InstallScript(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := InstallScript(dir)
	if err != nil || a != b {
		t.Errorf("%s, %s, %v", a, b, err)
	}
}

func TestDiffers(t *testing.T) {
	f := Facts{Reads: []string{"HOME", "VLLM_LOGGING_LEVEL", "CUDA_VISIBLE_DEVICES", "USER", "LOGNAME"}, Env: map[string]string{"HOME": "/root", "LD_PRELOAD": "x", "OTHER": "1", "USER": "root"}}
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"HOME=/root", "LD_PRELOAD=x", "OTHER=2", "CUDA_VISIBLE_DEVICES=3", "NEW=1"}, ""},
		{[]string{"HOME=/root", "LD_PRELOAD=x", "USER=thaw", "LOGNAME=thaw"}, ""},
		{[]string{"HOME=/root", "LD_PRELOAD=x", "VLLM_LOGGING_LEVEL=DEBUG"}, "VLLM_LOGGING_LEVEL"},
		{[]string{"LD_PRELOAD=x"}, "HOME"},
		{[]string{"HOME=/root"}, "LD_PRELOAD"},
		{[]string{"HOME=/root", "LD_PRELOAD=x", "PYTHONPATH="}, "PYTHONPATH"},
		{[]string{"HOME=/root", "LD_PRELOAD=x", "OMP_NUM_THREADS=4"}, "OMP_NUM_THREADS"},
	} {
		if got := f.DifferingVariable(c.env); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

func TestScrub(t *testing.T) {
	got := ParentEnviron([]string{"HOME=/root", "CUDA_VISIBLE_DEVICES=1", "VLLM_API_KEY=y", "TMPDIR=/x", "odd"})
	if !slices.Equal(got, []string{"HOME=/root"}) {
		t.Error(got)
	}
}

func TestAsk(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	for name, c := range map[string]struct{ answer, want string }{
		"facts":    {`{"facts":{"protocol":1,"pid":77,"threads":1}}`, ""},
		"error":    {`{"error":"no"}`, "reports: no"},
		"protocol": {`{"facts":{"protocol":2,"pid":77}}`, "protocol 2"},
		"nothing":  {``, "does not answer"},
		"nonsense": {`{`, "answer"},
		"empty":    {`{}`, "no facts"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if Supported {
				dir = long + name
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "s")
			at, done, err := jsonsocket.ShortPath(path)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			ln, err := net.Listen("unix", at)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			go func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				conn.Read(make([]byte, 100))
				conn.Write([]byte(c.answer))
				conn.Close()
			}()
			f, err := AskFacts(t.Context(), path)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	// A hanging parent does not hold the caller past its context.
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := AskFacts(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestUnfit(t *testing.T) {
	for _, c := range []struct {
		f    Facts
		want string
	}{
		{Facts{Threads: 1}, ""}, {Facts{Threads: 3}, "3 threads"}, {Facts{Threads: 1, Touched: []string{"/dev/nvidia0"}}, "/dev/nvidia0"},
	} {
		if got := c.f.Unusable(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c.f, got)
		}
	}
}

func FuzzParseFacts(f *testing.F) {
	b, _ := json.Marshal(map[string]any{"facts": Facts{Protocol: 1, PID: 7, Env: map[string]string{"A": "b"}}})
	f.Add(b)
	f.Add([]byte(`{"error":"x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var a factsAnswer
		if json.Unmarshal(line, &a) != nil {
			return
		}
		if facts, err := a.check(); err == nil && (facts.PID <= 1 || facts.Protocol != Protocol) {
			t.Errorf("%q was taken: %+v", line, facts)
		}
	})
}

func FuzzInterpreter(f *testing.F) {
	f.Add("#!/venv/bin/python -E\n")
	f.Add("#!/bin/sh\n'''exec' \"/x/python\" \"$0\" \"$@\"\n")
	f.Fuzz(func(t *testing.T, head string) {
		if w := interpreter(head); len(w) > 0 && !filepath.IsAbs(w[0]) {
			t.Errorf("%q: %v", head, w)
		}
	})
}
