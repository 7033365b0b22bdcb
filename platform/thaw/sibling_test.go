package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestSiblingProgram: the program for clusters runs from the folder of this one; if it is missing,
// the error says so.
func TestSiblingProgram(t *testing.T) {
	var out, errs bytes.Buffer
	file := filepath.Join(t.TempDir(), "m.yaml")
	// The test's binary has no sibling, and a program on PATH is not used instead.
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "thaw-knative")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("PATH", filepath.Dir(script("echo wrong"))+":"+os.Getenv("PATH"))
	exit := run(t.Context(), []string{"deploy", "--to", "knative", "-f", file}, strings.NewReader(""), &out, &errs)
	if exit != kit.ExitFailed || out.Len() > 0 || !strings.Contains(errs.String(), "there is no ") ||
		!strings.Contains(errs.String(), "hint: make build makes both") {
		t.Errorf("exit %d %s%s", exit, out.String(), errs.String())
	}

	out.Reset()
	errs.Reset()
	err := runProgram(t.Context(), script(`cat; echo "$@"; echo no >&2; exit 3`), []string{"deploy", "--filename=a b"}, strings.NewReader("in\n"), &out, &errs)
	if e, ok := errors.AsType[*kit.Error](err); !ok || e.Exit != 3 || e.Error() != "" || out.String() != "in\ndeploy --filename=a b\n" ||
		errs.String() != "no\n" {
		t.Errorf("%v %q %q", err, out.String(), errs.String())
	}
	if err := runProgram(t.Context(), script("exit 0"), nil, nil, &out, &errs); err != nil {
		t.Error(err)
	}
	if err := runProgram(t.Context(), script("kill -9 $$"), nil, nil, &out, &errs); err == nil ||
		!strings.Contains(err.Error(), "thaw-knative: signal: killed") {
		t.Error(err)
	}

	// A cancelled context ends the program.
	ctx, stop := context.WithCancel(t.Context())
	path := script("trap 'echo drained; exit 0' TERM\necho ready\nwhile :; do sleep 0.05; done")
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- runProgram(ctx, path, nil, nil, to, &errs)
		to.Close()
	}()
	said := bufio.NewReader(from)
	if line, err := said.ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	stop()
	rest, _ := io.ReadAll(said)
	if err := <-done; !errors.Is(err, context.Canceled) || string(rest) != "drained\n" {
		t.Errorf("%v %q", err, rest)
	}
}
