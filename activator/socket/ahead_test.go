package socket

import (
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/thaw-dev/thaw/functions"
)

func (r *rig) routeByCode(to string) {
	yes := true
	r.route(functions.Rule{Name: "code", When: functions.When{Code: &yes}, To: []string{to}}, functions.Rule{Name: "general", To: []string{"tiny"}})
}

const someCode = "```go\nfunc main() {\n\tfmt.Println(\"x\")\n}\n``` "

// TestPrewarm: a cold target that a rule names is started by a lease, which ends when the
// rule no longer holds or the socket closes, unless another socket wants it.
func TestPrewarm(t *testing.T) {
	r := newRig(t, nil)
	r.publish("coder", false)
	r.routeByCode("coder")
	c := r.connect("/ws/me")
	c.say("hello there ")
	if f, _ := c.until("intent_change"); f.Rule != "general" || f.Prepares != "" {
		t.Fatalf("%+v", f)
	}
	c.say(someCode)
	if f, _ := c.until("intent_change"); f.Rule != "code" || f.Target != "coder" || f.Prepares != "model" {
		t.Fatalf("%+v", f)
	}
	expect(t, r.starts, "start default/coder by socket")
	c.say("hello there ")
	c.until("intent_change")
	expect(t, r.starts, "end default/coder by socket")
	expect(t, r.counted, "default/auto default model waste")
	c.say(someCode) // within the second: begun when it is over
	c.until("intent_change")
	expect(t, r.starts, "start default/coder by socket")
	two := r.connect("/ws/two")
	two.say(someCode)
	two.until("intent_change")
	expect(t, r.starts, "start default/coder by socket")
	two.Close(websocket.StatusNormalClosure, "")
	expect(t, r.counted, "default/auto default model waste")
	c.say("__submit__") // the other socket's end has not ended the start
	if f, _ := c.until("progress"); f.State == "" {
		t.Fatalf("%+v", f)
	}
	r.publish("coder", true)
	c.until("generation_complete")
	expect(t, r.counted, "default/auto default model late")
	c.say("__ping__")
	c.until("pong")
	select { // the platform ends the lease of a start that was used
	case s := <-r.starts:
		t.Errorf("%s", s)
	default:
	}
	if n := len(r.server.o.Ahead.leases); n != 0 {
		t.Errorf("%d leases are still counted", n)
	}
}

// TestReadyBeforeEnter: a start that is over at the submit is a hit.
func TestReadyBeforeEnter(t *testing.T) {
	r := newRig(t, nil)
	r.publish("coder", false)
	r.routeByCode("coder")
	c := r.connect("/ws/me")
	c.say(someCode)
	c.until("intent_change")
	expect(t, r.starts, "start default/coder by socket")
	r.publish("coder", true)
	c.say("__submit__")
	if f, _ := c.until("generation_start"); f.Cold || f.Model != "coder" {
		t.Fatalf("%+v", f)
	}
	c.until("generation_complete")
	expect(t, r.counted, "default/auto default model hit")
}

// TestLoadAdapter: the adapter of a READY model is loaded while the text is typed.
func TestLoadAdapter(t *testing.T) {
	r := newRig(t, nil)
	r.publish("base", true, "pirate")
	r.routeByCode("base:pirate")
	c := r.connect("/ws/me")
	c.say(someCode)
	if f, _ := c.until("intent_change"); f.Prepares != "adapter" || f.Target != "base:pirate" {
		t.Fatalf("%+v", f)
	}
	expect(t, r.loads, "default/base:pirate at r1")
	c.say("__submit__")
	if f, _ := c.until("generation_start"); f.Model != "base" || f.Adapter != "pirate" {
		t.Fatalf("%+v", f)
	}
	c.until("generation_complete")
	if got := <-r.counted; !strings.HasPrefix(got, "default/auto default adapter ") {
		t.Errorf("%q", got)
	}
}

// TestSameModel: a start goes on when the target changes to another adapter of its model,
// which is loaded when the model is READY; the end of the socket gives both up.
func TestSameModel(t *testing.T) {
	r := newRig(t, nil)
	r.publish("base", false, "pirate", "poet")
	yes := true
	r.route(functions.Rule{Name: "code", When: functions.When{Code: &yes}, To: []string{"base:pirate"}}, functions.Rule{Name: "general", To: []string{"base:poet"}})
	c := r.connect("/ws/me")
	c.say(someCode)
	if f, _ := c.until("intent_change"); f.Prepares != "model" {
		t.Fatalf("%+v", f)
	}
	expect(t, r.starts, "start default/base by socket")
	c.say("hello there ")
	if f, _ := c.until("intent_change"); f.Target != "base:poet" {
		t.Fatalf("%+v", f)
	}
	r.publish("base", true, "pirate", "poet")
	c.say(someCode)
	if f, _ := c.until("intent_change"); f.Prepares != "adapter" {
		t.Fatalf("%+v", f)
	}
	expect(t, r.loads, "default/base:pirate at r1")
	if len(r.starts) != 0 {
		t.Fatalf("the start was given up: %s", <-r.starts)
	}
	c.Close(websocket.StatusNormalClosure, "")
	expect(t, r.starts, "end default/base by socket")
	expect(t, r.counted, "default/auto default model waste")
	expect(t, r.counted, "default/auto default adapter waste")
}

// TestUnsure: a rule without a condition beside others prepares nothing.
func TestUnsure(t *testing.T) {
	r := newRig(t, nil)
	r.publish("tiny", false)
	r.routeByCode("coder")
	c := r.connect("/ws/me")
	c.say("hello there ")
	if f, _ := c.until("intent_change"); f.Prepares != "" {
		t.Fatalf("%+v", f)
	}
	select {
	case s := <-r.starts:
		t.Errorf("%s", s)
	default:
	}
}

func TestLastBoundary(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "",
		"whe":               "",
		"where is":          "where ",
		"where is ":         "where is ",
		"don't":             "",
		"where, my":         "where, ",
		"snake_ca":          "",
		"请问发票":              "请问发票",
		"請問 invoice":        "請問 ",
		"naïve cafe\u0301s": "naïve ",
		"😀":                 "😀",
	} {
		if got := text[:lastBoundary(text)]; got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
