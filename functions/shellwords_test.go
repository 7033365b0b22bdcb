package functions

import (
	"strings"
	"testing"
)

// TestShellWords: what only a shell understands is refused in the arguments of a command, with what to
// write; the same words within one argument, or as the value of a flag, are left alone.
func TestShellWords(t *testing.T) {
	for args, want := range map[string]string{
		"source|venv/bin/activate|&&|python3|{port}":  `spec.args[0]: "source" is a word of a shell`,
		"cd|/x|&&|python3|{port}":                     `spec.args[0]: "cd" is a word`,
		"export|A=b|{port}":                           `[bash, -c, "… && exec my-server --port {port}"]`,
		"python3|x.py|{port}|>|log|2>&1":              `spec.args[3]: ">" is a word of a shell, and none reads args`,
		"python3|x.py|{port}|2>&1":                    `spec.args[3]: "2>&1"`,
		"python3|x.py|{port}|&":                       `spec.args[3]: "&"`,
		"CUDA_VISIBLE_DEVICES=0|python3|{port}":       "spec.args[0]: a variable is no program ({CUDA_VISIBLE_DEVICES: 0} in env)",
		"python3 x.py --port {port}":                  "spec.args[0]: each argument is an element of its own ([python3, x.py, --port, {port}])",
		"~/server|{port}":                             "spec.args[0]: a home folder is no ~ here",
		"python3|~/server.py|{port}":                  "spec.args[1]: a home folder is no ~ here (write its whole path)",
		"bash|-c|cd /x && exec server {port} > log":   "",
		"/opt/my app/server|{port}":                   "",
		"server|--separator|&|{port}|a~/b|x=y|source": "",
		"env|A=b|server|{port}":                       "",
	} {
		p := problems{}
		p.checkArgs(&ModelSpec{Engine: EngineCommand, Args: strings.Split(args, "|")})
		got := ""
		for _, problem := range p {
			got += problem.String() + "\n"
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
