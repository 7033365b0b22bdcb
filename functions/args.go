package functions

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// reservedFlags are the flags that only thaw sets, by engine.
var reservedFlags = map[Engine][]string{
	EngineEmber:    {"--model", "--served-model-name", "--host", "--port"},
	EngineVLLM:     {"--model", "--served-model-name", "--host", "--port", "--uds", "--api-key"},
	EngineSGLang:   {"--model-path", "--model", "--served-model-name", "--host", "--port", "--api-key", "--admin-api-key"},
	EngineLlamaCpp: {"--model", "-m", "--alias", "-a", "--host", "--port", "--hf-repo", "-hf", "-hfr", "--model-url", "-mu", "--api-key", "--api-key-file"},
}

// FlagName is the flag that an argument sets, as FLAG or FLAG=VALUE. argparse takes
// --served_model_name for --served-model-name.
func FlagName(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	if strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	return name
}

// ReservedFlag is the flag of an argument that only thaw sets for an engine; "" if it is none.
func ReservedFlag(e Engine, arg string) string {
	if name := FlagName(arg); slices.Contains(reservedFlags[e], name) {
		return name
	}
	return ""
}

// splitFlag is a flag with its value in one element, as in one word of a shell.
var splitFlag = regexp.MustCompile(`^--?[A-Za-z][\w-]*\s`)

// What only a shell understands: its own commands and variables before a program, and operators between arguments.
var (
	shellCommand  = regexp.MustCompile(`^(?:source|\.|cd|export|eval|exec|set|ulimit|unset)$`)
	shellVariable = regexp.MustCompile(`^[A-Za-z_]\w*=`)
	shellOperator = regexp.MustCompile(`^(?:&&?|\|\|?|;|<|[012&]?>{1,2}(?:&[012])?)$`)
)

// checkShellWords checks the arguments of a command for what only a shell understands: none reads them.
func (p *problems) checkShellWords(args []string) {
	for i, a := range args {
		at := fmt.Sprintf("spec.args[%d]", i)
		first, _, more := strings.Cut(a, " ")
		switch {
		case i == 0 && shellCommand.MatchString(a), i > 0 && shellOperator.MatchString(a) && !strings.HasPrefix(args[i-1], "-"):
			p.add(at, "[bash, -c, \"… && exec my-server --port {port}\"]; env and folder set variables and the folder",
				"%q is a word of a shell, and none reads args", a)
			return // the others come from it
		case i == 0 && shellVariable.MatchString(a):
			p.add(at, "{"+strings.Replace(Clip(a), "=", ": ", 1)+"} in env", "a variable is no program")
		case i == 0 && more && !strings.Contains(first, "/"):
			p.add(at, "["+strings.Join(strings.Fields(Clip(a)), ", ")+"]", "each argument is an element of its own")
		case strings.HasPrefix(a, "~/"):
			p.add(at, "write its whole path", "a home folder is no ~ here")
		}
	}
}

// checkArgs checks the arguments of an engine, and the words that thaw fills in.
func (p *problems) checkArgs(s *ModelSpec) {
	command := s.Engine == EngineCommand
	if command && (len(s.Args) == 0 || s.Args[0] == "") {
		p.add("spec.args", "such as [my-server, --port, \"{port}\"]", "a command engine needs its argv")
	}
	for i, a := range s.Args {
		at := fmt.Sprintf("spec.args[%d]", i)
		if strings.ContainsRune(a, 0) || !utf8.ValidString(a) {
			p.add(at, "", "a program cannot be given this text: it holds a NUL or is not UTF-8")
		}
		if name := FlagName(a); !command && splitFlag.MatchString(name) {
			p.add(at, "["+strings.Join(strings.Fields(Clip(a)), ", ")+"]", "a flag and its value are two elements, or one with a = between them")
		}
		if !command && strings.IndexFunc(a, func(r rune) bool { return strings.ContainsRune("‐‑‒–—−", r) }) == 0 {
			p.add(at, "write -", "%q begins with a dash that is no hyphen", Clip(a))
		} else if !command && s.Engine != "" && i == 0 && !strings.HasPrefix(a, "-") {
			p.add(at, "args are its flags: thaw gives the program, its verb and the model itself", "%q is no flag of %s", Clip(a), s.Engine)
		}
		if f := ReservedFlag(s.Engine, a); f != "" {
			p.add(at, "leave it out", "%s is set by thaw and cannot be given", f)
		}
		if command && (strings.Contains(a, "{{port}}") || strings.Contains(a, "${port}")) {
			p.add(at, "{port}", "the port has one pair of braces, and no $")
		}
		if command && strings.Contains(a, "{key}") {
			p.add(at, "put it into env", "every user of the machine could read {key} there")
		}
	}
	fills := func(word string) bool {
		has := func(text string) bool { return strings.Contains(text, word) }
		return slices.ContainsFunc(s.Args, has) || slices.ContainsFunc(slices.Collect(maps.Values(s.Env)), has)
	}
	if command {
		p.checkShellWords(s.Args)
	}
	if command && len(s.Args) > 0 && !fills("{port}") {
		p.add("spec.args", "such as --port, \"{port}\"; or PORT: \"{port}\" in env",
			"{port} is in neither args nor env, so the server would listen on another port than thaw asks")
	}
	if command && s.Source == "" && fills("{model}") {
		p.add("spec.source", "give a source, or take {model} out of args and env", "args or env ask for {model}, but there is no source")
	}
}
