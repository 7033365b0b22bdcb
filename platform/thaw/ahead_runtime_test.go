package main

import (
	"sync"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestRuntimeAhead: a shim holds a bounded number of requests before its engine is READY.
// They go to the engine at READY; if the start fails they are returned unserved.
func TestRuntimeAhead(t *testing.T) {
	t.Parallel()
	const most, more = 16, 3
	// ahead sends requests to a shim without a loader, and waits until those beyond the bound
	// are refused.
	ahead := func(p *podProcess) (waiting func() []reply) {
		var all sync.WaitGroup
		answers := make(chan reply, most+more)
		for range most + more {
			all.Go(func() {
				answers <- p.do("POST", "/v1/chat/completions", `{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`, snapshot.EarlyHeader, "1")
			})
		}
		for range more {
			if r := <-answers; r.status != 503 || r.failure().Code != "model_loading" {
				t.Errorf("with the door full: %d %s", r.status, r.body)
			}
		}
		if r := p.chat("tiny", ""); r.status != 503 || r.failure().Code != "model_loading" {
			t.Errorf("one that was not sent ahead: %d %s", r.status, r.body)
		}
		return func() (out []reply) {
			all.Wait()
			close(answers)
			for r := range answers {
				out = append(out, r)
			}
			if len(out) != most {
				t.Errorf("%d waited, want %d", len(out), most)
			}
			return out
		}
	}

	l := newNodeLoader(t)
	l.has(tinySource, tinyDir(t))
	p := runtimeOf(t, l.store, inPodOf(tinySource, "ember", ""))
	waiting := ahead(p)
	l.open()
	for _, r := range waiting() {
		if r.status != 200 || r.text() == "" || r.header.Get(snapshot.HeldHeader) == "" {
			t.Errorf("after READY: %d %s", r.status, r.body)
		}
	}
	line := p.timeline()
	if n := len(line.Phases); n == 0 || line.Phases[n-1].Phase != functions.PhaseFirstToken || len(line.Phases[n-1].Parts) != 2 {
		t.Errorf("the way of the first request is not told: %+v", line.Phases)
	} else if d := line.Phases[n-1].Parts[0].Duration; d < 0 || d > line.Phases[n-1].Duration {
		t.Errorf("it was let through %v s after READY", d)
	}
	for _, st := range l.statuses() {
		if !st.State.Over() && st.Endpoint == "" {
			t.Errorf("%s, and the timeline has no endpoint", st.State)
		}
	}

	t.Run("the start fails", func(t *testing.T) {
		l := newNodeLoader(t)
		l.fails = controlstream.Failed{Kind: "source_not_found", Message: "nothing is there"}
		p := runtimeOf(t, l.store, inPodOf(tinySource, "ember", ""))
		waiting := ahead(p)
		l.open()
		for _, r := range waiting() {
			if r.status != 503 || r.failure().Code != "model_load_failed" {
				t.Errorf("%d %s", r.status, r.body)
			}
		}
		p.terminate(l)
		p.ends(1, "nothing is there")
	})
	t.Run("the pod ends", func(t *testing.T) {
		l := newNodeLoader(t)
		p := runtimeOf(t, l.store, inPodOf(tinySource, "ember", ""))
		waiting := ahead(p)
		signalPID(t, p.proc.Process.Pid, syscall.SIGTERM)
		for _, r := range waiting() {
			if r.status != 503 || r.failure().Code != "shutting_down" {
				t.Errorf("%d %s", r.status, r.body)
			}
		}
		p.ends(0)
	})
}

// statuses lists all statuses that the shim reported.
func (l *nodeLoader) statuses() []functions.ReplicaStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]functions.ReplicaStatus(nil), l.said...)
}
