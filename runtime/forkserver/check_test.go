package forkserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheck: a parent is replaced after enough checks without an answer, when it
// cannot fork, when it has forked often, and when its installation changes.
func TestCheck(t *testing.T) {
	program := filepath.Join(t.TempDir(), "vllm")
	os.WriteFile(program, []byte("1"), 0o700)
	healthy := Facts{PID: 7, Threads: 1}
	for name, c := range map[string]struct {
		answer  Facts
		err     error
		before  func(p *Parent)
		replace []string // of the checks in turn; "" keeps it
	}{
		"healthy":         {answer: healthy, replace: []string{"", ""}},
		"silent":          {err: errors.New("timeout"), replace: []string{"", "", "it does not answer: timeout"}},
		"silent, suspect": {err: errors.New("timeout"), before: (*Parent).OnForkFailed, replace: []string{"it does not answer: timeout"}},
		"threads":         {answer: Facts{PID: 7, Threads: 2}, replace: []string{"2 threads"}},
		"forks":           {answer: Facts{PID: 7, Threads: 1, Forks: maxForks}, replace: []string{"forked 500 times"}},
		"changed":         {answer: healthy, before: func(*Parent) { os.WriteFile(program, []byte("22"), 0o700) }, replace: []string{"files have changed"}},
	} {
		p := NewParent(ParentOptions{
			Env: Environment{Program: program, Python: []string{"/usr/bin/env"}}, MaxUnanswered: 3,
			Facts: func(context.Context) (Facts, error) { return c.answer, c.err },
		})
		if err := p.SetReady(healthy); err != nil {
			t.Fatal(err)
		}
		if c.before != nil {
			c.before(p)
		}
		for i, want := range c.replace {
			if got := p.Check(t.Context()); (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s: check %d: %q, want %q", name, i+1, got, want)
			}
		}
	}
}

// TestAwait: the wait ends with the facts, with the end of the process, or with the
// cause of the context's end.
func TestAwait(t *testing.T) {
	never := func(context.Context) (Facts, error) { return Facts{}, errors.New("not yet") }
	exited := make(chan string, 1)
	exited <- "exit 1"
	if exit, err := Await(t.Context(), NewParent(ParentOptions{Facts: never}), exited); exit == nil || *exit != "exit 1" || err != nil {
		t.Error(exit, err)
	}
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	if exit, err := Await(ctx, NewParent(ParentOptions{Facts: never}), exited); exit != nil || err != late {
		t.Error(exit, err)
	}
	unfit := func(context.Context) (Facts, error) { return Facts{Threads: 2}, nil }
	p := NewParent(ParentOptions{Facts: unfit})
	if _, err := Await(t.Context(), p, exited); err == nil || !strings.Contains(err.Error(), "2 threads") {
		t.Error(err)
	}
	if _, ready := p.Facts(); ready {
		t.Error("a parent with two threads is ready")
	}
}
