package openai

import (
	"fmt"

	"github.com/thaw-dev/thaw/functions"
)

// schemaFault is what a schema has that must not be compiled into a grammar.
type schemaFault struct{ tool, property, has, change string }

func (f *schemaFault) Error() string { return f.what() }

func (f *schemaFault) what() string {
	if f.property == "" {
		return f.has
	}
	return fmt.Sprintf("at the property `%s` %s", cleanMessage(f.property), f.has)
}

// checkTools checks the size and the depth of tools. A fault of a schema in them is kept for
// [Envelope.CheckTools].
func (p *peeker) checkTools(key, v []byte) error {
	if len(v) > MaxToolsBytes {
		return outside(key, "must have at most %d bytes", MaxToolsBytes)
	}
	err := eachTool(v, func(tool []byte, deep int) error {
		err := schemaValue(key, tool, deep, maxTexts)
		if f, ok := err.(*schemaFault); ok {
			f.tool = toolName(tool)
		}
		return err
	})
	f, ok := err.(*schemaFault)
	if !ok {
		return err
	}
	p.env.toolFault = f
	if v[0] == '{' || v[0] == '[' { // what is behind the fault
		w := walker{b: v, depth: MaxSchemaDepth, member: func(_, _, _ []byte) error { return nil }}
		return w.checkDepth(key, 1)
	}
	return nil
}

// eachTool calls visit for each element of an array, at nesting depth deep, or for another
// value itself.
func eachTool(v []byte, visit func(tool []byte, deep int) error) error {
	if v[0] != '[' {
		return visit(v, 1)
	}
	for i := skipSpace(v, 1); v[i] != ']'; i = skipSpace(v, i) {
		if v[i] == ',' {
			i = skipSpace(v, i+1)
		}
		end, _, err := scanValue(v, i, 2, nil)
		if err != nil {
			return err
		}
		if err := visit(v[i:end], 2); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// toolName is the name of a tool, in whichever form it has; "" if it has none.
func toolName(tool []byte) (name string) {
	w := walker{b: tool, member: func(parent, key, value []byte) error {
		if string(key) == "name" && value[0] == '"' && (parent == nil || string(parent) == "function") && name == "" {
			name = unquoteText(value)
		}
		return nil
	}}
	w.walk(0, 1, nil)
	return name
}

// forcesTool reports whether a tool_choice or function_call binds the answer to calls of
// tools: every one but null, auto and none.
func forcesTool(v []byte) bool {
	free := func(v []byte) bool {
		return v[0] == '"' && (unquoteText(v) == "auto" || unquoteText(v) == "none")
	}
	if v[0] != '{' {
		return v[0] != 'n' && !free(v)
	}
	typed, forces := false, false
	w := walker{b: v, member: func(_, name, value []byte) error {
		switch string(name) {
		case "type":
			typed, forces = true, forces || !free(value)
		case "disable_parallel_tool_use":
		default:
			forces = true
		}
		return nil
	}}
	w.walk(0, 1, nil)
	return forces || !typed
}

// CheckTools checks the tools of the request against what the engine
// compiles into a grammar: llama.cpp all tools, others those of a request that binds the
// form of its answer. Elsewhere every schema of a tool passes.
func (e *Envelope) CheckTools(engine functions.Engine) *Error {
	f := e.toolFault
	if f == nil || engine != functions.EngineLlamaCpp && !e.formBound {
		return nil
	}
	why := "This request binds the form of its answer (tool_choice, response_format, a strict tool or a grammar), for which the engine " +
		"compiles schemas into a grammar"
	if engine == functions.EngineLlamaCpp {
		why = "llama.cpp compiles the tools of every request into a grammar"
	}
	tool := "A tool"
	if f.tool != "" {
		tool = "The tool `" + cleanMessage(f.tool) + "`"
	}
	return New(InvalidValue, tool+" has "+f.what()+". "+why+": "+f.change+".").With("/tools")
}
