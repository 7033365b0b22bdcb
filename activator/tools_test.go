package activator

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions"
)

// TestToolsByEngine: a tool that an engine must not compile is refused where it would be,
// cold and warm, and reaches the engine as it came elsewhere.
func TestToolsByEngine(t *testing.T) {
	const tools = `"tools":[{"name":"write_file","input_schema":{"properties":{"content":{"type":"string","maxLength":524288}}}}]`
	for _, x := range []struct {
		engine       functions.Engine
		path, choice string
		served       bool
	}{
		{functions.EngineVLLM, "/v1/messages", ``, true},
		{functions.EngineVLLM, "/v1/chat/completions", `,"tool_choice":"none"`, true},
		{functions.EngineVLLM, "/v1/messages", `,"tool_choice":{"type":"any"}`, false},
		{functions.EngineCommand, "/v1/chat/completions", ``, true},
		{functions.EngineLlamaCpp, "/v1/chat/completions", ``, false},
		{functions.EngineLlamaCpp, "/v1/messages", `,"tool_choice":{"type":"none"}`, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			e := w.engineAt("e:1", goodAnswer)
			f := testFunction("tiny")
			f.Model.Spec.Engine = x.engine
			w.act.Publish(f)
			body := `{"model":"tiny","messages":[],` + tools + x.choice + `}`
			if !x.served {
				if r := w.post(x.path, body); r.status != 400 || !strings.Contains(r.body, "write_file") {
					t.Errorf("%+v, cold: %+v", x, r)
				}
			}
			w.act.Publish(readyAt(f, 4, "e:1"))
			r := w.post(x.path, body)
			if x.served {
				if r.status != 200 || len(e.requests()) != 1 || !strings.Contains(e.requests()[0].body, tools) {
					t.Errorf("%+v: %+v", x, r)
				}
			} else if r.status != 400 || !strings.Contains(r.body, "`content`") || len(e.requests()) != 0 {
				t.Errorf("%+v: %+v", x, r)
			}
		})
	}
}
