package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestExplain: one model evicts another, and the explanations of both have their state,
// its cause, and the decision.
func TestExplain(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"one.yaml": tiny(t, "one", "resources: {gpus: 1}\n"),
		"two.yaml": tiny(t, "two", "resources: {gpus: 1}\n"),
	}, "--gpus", "1")
	explain := func(kind, name string) (e struct {
		Now, Chosen, Reason, For string
		Candidates               []struct{ Node, Function, Why string }
		Events                   []struct{ Kind, Message, For string }
	}) {
		t.Helper()
		r := p.do("GET", "/api/v1/explain/"+kind+"/default/"+name, "")
		if err := json.Unmarshal([]byte(r.body), &e); r.status != 200 || err != nil {
			t.Fatalf("%d %s %v", r.status, r.body, err)
		}
		return e
	}
	if e := explain("place", "one"); !strings.Contains(e.Now, "It is cold") {
		t.Errorf("at rest: %+v", e)
	}
	if r := p.chat("one", ""); r.status != 200 {
		t.Fatal(r.status, r.body)
	}
	p.eventually("its request is over", func() bool { return !strings.Contains(explain("place", "one").Now, "serves") })
	if e := explain("place", "one"); !strings.Contains(e.Now, "ready and idle") || e.Chosen == "" || e.Reason != "requests wait for it" ||
		len(e.Candidates) != 1 {
		t.Errorf("placed: %+v", e)
	}
	if r := p.chat("two", ""); r.status != 200 {
		t.Fatal(r.status, r.body)
	}
	if e := explain("evict", "two"); len(e.Candidates) != 1 || e.Candidates[0].Function != "default/one" {
		t.Errorf("who made way for two: %+v", e)
	}
	e := explain("cold", "one")
	if !strings.Contains(e.Now, "another function needs the room") {
		t.Errorf("one is told of as %q", e.Now)
	}
	stopped := false
	for _, v := range e.Events {
		stopped = stopped || v.Kind == "stop" && v.For == "default/two" && strings.Contains(v.Message, "another function")
	}
	if !stopped {
		t.Errorf("its events: %+v", e.Events)
	}
}
