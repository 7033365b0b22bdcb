package openai

import (
	"fmt"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// zodEmail is the pattern that zod writes for an e-mail address.
const zodEmail = `^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$`

// TestCheckTools: what a tool's schema has is refused only where an engine compiles it.
func TestCheckTools(t *testing.T) {
	const (
		never = iota
		llama // by llama.cpp alone
		all
	)
	chat := func(property string) string {
		return `"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}},{"type":"function","function":{"name":"write_file","parameters":{"type":"object","properties":{"content":` + property + `}}}}]`
	}
	long := `{"type":"string","maxLength":524288}`
	mail := `{"type":"string","pattern":"` + zodEmail + `"}`
	anthropic := `"tools":[{"name":"write_file","input_schema":{"type":"object","properties":{"content":` + long + `}}}]`
	for _, x := range []struct {
		name, more string
		want       int
		says       []string
	}{
		{"honest", chat(`{"type":"string","maxLength":100}`), never, nil},
		{"maxLength", chat(long), llama, []string{"`write_file`", "`content`", "maxLength 524288", "65536"}},
		{"as messages have it", anthropic, llama, []string{"`write_file`", "`content`", "maxLength 524288"}},
		{"as responses have it", `"tools":[{"type":"function","name":"write_file","parameters":{"properties":{"content":` + long + `}}}]`, llama, []string{"`write_file`", "`content`"}},
		{"as a string of JSON", `"tools":[{"function":{"name":"f","parameters":"{\"properties\":{\"a\":{\"maxLength\":1e9}}}"}}]`, llama, []string{"`f`", "`a`", "1e9"}},
		{"no JSON in a string", `"tools":[{"function":{"name":"f","parameters":"{"}}]`, llama, []string{"`f`", "not valid JSON"}},
		{"functions", `"functions":[{"name":"f","parameters":{"properties":{"a":{"minItems":-1}}}}]`, llama, []string{"`f`", "`a`", "minItems -1"}},
		{"a lookahead", chat(mail), llama, []string{"`write_file`", "`content`", `]*)[A….`, "lookarounds", "leave it out"}},
		{"a long pattern", chat(`{"pattern":"` + strings.Repeat("a", 513) + `"}`), llama, []string{"512 bytes", "shorten"}},
		{"a bad pattern of the most bytes", chat(`{"pattern":"(?=` + strings.Repeat("a", 508) + `)"}`), llama, []string{"RE2"}},
		{"a name that is a pattern", chat(`{"patternProperties":{"(?=a)":{}}}`), llama, []string{"`content`", "(?=a)"}},
		{"elements of a property", chat(`{"type":"array","items":{"anyOf":[` + long + `]}}`), llama, []string{"`content`"}},
		{"an inner property", chat(`{"properties":{"inner":` + long + `}}`), llama, []string{"`inner`"}},
		{"behind an inner property", chat(`{"properties":{"inner":{}},"maxProperties":70000}`), llama, []string{"`content`"}},
		{"no property", `"tools":[{"name":"f","input_schema":{"maxLength":70000}}]`, llama, []string{"The tool `f` has maxLength 70000"}},
		{"a list of properties", `"tools":[{"name":"f","properties":[{"maxLength":70000}]}]`, llama, []string{"The tool `f` has maxLength 70000"}},
		{"no name", `"tools":[{"input_schema":{"maxLength":70000}}]`, llama, []string{"A tool has maxLength 70000"}},
		{"two lists", `"tools":[{"name":"f","maxLength":70000}],"functions":[{"name":"g","maxLength":70001}]`, llama, []string{"`g`", "70001"}},
		{"an object", `"tools":{"name":"f","maxLength":70000}`, llama, []string{"`f`"}},

		{"none", chat(long) + `,"tool_choice":"none"`, llama, nil},
		{"auto", chat(long) + `,"tool_choice":"auto"`, llama, nil},
		{"null", chat(long) + `,"tool_choice":null`, llama, nil},
		{"auto as messages have it", anthropic + `,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, llama, nil},
		{"none as messages have it", anthropic + `,"tool_choice":{"type":"none"}`, llama, nil},
		{"a call of none", chat(long) + `,"function_call":"none"`, llama, nil},
		{"text", chat(long) + `,"response_format":{"type":"text"}`, llama, nil},

		{"required", chat(long) + `,"tool_choice":"required"`, all, nil},
		{"required, before the tools", `"tool_choice":"r\u0065quired",` + chat(mail), all, []string{"lookarounds"}},
		{"a named tool", chat(long) + `,"tool_choice":{"type":"function","function":{"name":"write_file"}}`, all, nil},
		{"any", anthropic + `,"tool_choice":{"type":"any"}`, all, nil},
		{"auto and any", anthropic + `,"tool_choice":{"type":"any","type":"auto"}`, all, nil},
		{"a tool", anthropic + `,"tool_choice":{"type":"tool","name":"write_file"}`, all, nil},
		{"an empty choice", chat(long) + `,"tool_choice":{}`, all, nil},
		{"required, and a call of none", chat(long) + `,"tool_choice":"required","function_call":"none"`, all, nil},
		{"a call of a function, and auto", chat(long) + `,"function_call":{"name":"f"},"tool_choice":"auto"`, all, nil},
		{"a call of a function", chat(long) + `,"function_call":{"name":"f"}`, all, nil},
		{"a format", chat(long) + `,"response_format":{"type":"json_object"}`, all, nil},
		{"a schema of the engine's own", chat(mail) + `,"structured_outputs":{"choice":["a"]}`, all, nil},
		{"a strict tool", strings.Replace(chat(long), `"name":"look"`, `"name":"look","strict":true`, 1), all, nil},
	} {
		body := []byte(`{"model":"m",` + x.more + `}`)
		env, err := Peek(body)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		for _, engine := range functions.Engines {
			e := env.CheckTools(engine)
			if want := x.want == all || x.want == llama && engine == functions.EngineLlamaCpp; (e != nil) != want {
				t.Errorf("%s, %s: %v", x.name, engine, e)
			}
			if e == nil {
				continue
			}
			if e.Status != 400 || e.Code != InvalidValue || e.Param != "/tools" {
				t.Errorf("%s, %s: %+v", x.name, engine, e)
			}
			why := "tool_choice, response_format"
			if engine == functions.EngineLlamaCpp {
				why = "llama.cpp"
			}
			for _, s := range append(x.says, why) {
				if !strings.Contains(fmt.Sprint(e), s) {
					t.Errorf("%s, %s: %q is not in %v", x.name, engine, s, e)
				}
			}
		}
	}
}
