package cli

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestUnknownVariables: serve, agent and loader warn of variables that no setting has, with the
// one that was meant; not of those that others set.
func TestUnknownVariables(t *testing.T) {
	run := func(environ []string, args ...string) string {
		p := Programs{
			Environ: func() []string { return environ },
			Serve:   func(context.Context, ServeConfig, io.Writer, io.Writer) error { return nil },
			Agent:   func(context.Context, AgentConfig, io.Writer, io.Writer) error { return nil },
			Loader:  func(context.Context, LoaderConfig, io.Writer, io.Writer) error { return nil },
		}
		_, errs, exit := runCLI(t, p, map[string]string{"HOME": "/home/x"}, args...)
		if exit != 0 {
			t.Errorf("%q %q: exit %d %s", environ, args, exit, errs)
		}
		return errs
	}
	for variable, meant := range map[string]string{
		"THAW_ADDRR=x": "THAW_ADDR?", "THAW_FUNCTION=/x": "THAW_FUNCTIONS?", "THAW_ENGINE_VLM=/x": "THAW_ENGINE_VLLM?", "THAW_PORT=9000": "THAW_ADDR?",
		"THAW_LISTEN=:80": "THAW_ADDR?", "THAW_addr=:80": "THAW_ADDR?", "THAW_TELEMETRY=off": "thaw serve --help lists the variables",
		"THAW_STORE_BYTE=1": "THAW_STORE_BYTES?",
	} {
		name, _, _ := strings.Cut(variable, "=")
		for _, args := range [][]string{{"serve"}, {"agent", "--server", "https://h:1"}, {"loader", "--store", "/s", "--allow-local", "--addr", "off"}} {
			errs := run([]string{"HOME=/home/x", variable}, args...)
			if strings.Count(errs, "level=WARN") != 1 || !strings.Contains(errs, "variable="+name+" ") || !strings.Contains(errs, meant) {
				t.Errorf("%s, %s: %q", variable, args[0], errs)
			}
		}
	}
	if errs := run([]string{"THAW_ADDRR=x"}, "serve", "--log-format", "json"); !strings.HasPrefix(errs, "{") || !strings.Contains(errs, "THAW_ADDR?") {
		t.Errorf("a log in JSON has %q", errs)
	}
	quiet := []string{
		"PATH=/bin", "THAWED=1", "THAW_ADDR=127.0.0.1:1", "THAW_SERVER=http://x", "THAW_KEY=k", "THAW_S3_STYLE=virtual", "THAW_TOKEN_FILE=/t",
		"THAW_PORT=tcp://10.0.0.1:80", "THAW_PORT_80_TCP=tcp://10.0.0.1:80", "THAW_PORT_80_TCP_ADDR=10.0.0.1", "THAW_PORT_80_TCP_PROTO=tcp",
		"THAW_SERVICE_HOST=10.0.0.1", "THAW_SERVICE_PORT=80", "THAW_SERVICE_PORT_HTTP=80", "THAW_ACTIVATOR_SERVICE_HOST=10.0.0.1",
		"THAW_ACTIVATOR_PORT=tcp://[fd00::1]:80", "THAW_ACTIVATOR_PORT_8080_TCP_PORT=8080", "THAW_OPENAI_API_KEY=sk",
	}
	if errs := run(quiet, "serve"); errs != "" {
		t.Errorf("it warns: %s", errs)
	}
}

// TestUnknownServerVariable: a verb of a client names what was meant to be its server or key.
func TestUnknownServerVariable(t *testing.T) {
	for variable, want := range map[string]string{
		"THAW_SERVR=http://127.0.0.1:1": "THAW_SERVR is ignored; did you mean THAW_SERVER?", "THAW_KEYY=k": "did you mean THAW_KEY?", "THAW_ADDRR=x": "", "THAW_AXE=1": "",
	} {
		p := Programs{Environ: func() []string { return []string{variable} }}
		_, errs, _ := runCLI(t, p, map[string]string{"HOME": t.TempDir()}, "ps", "--server", "http://127.0.0.1:1")
		if strings.Contains(errs, "is ignored") != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("%s: %q", variable, errs)
		}
	}
}

// TestVariablesAreKnown: every variable that the programs read is a known one.
func TestVariablesAreKnown(t *testing.T) {
	known := append(kit.Variables(new(ServeConfig), new(AgentConfig), new(LoaderConfig)), moreVariables...)
	literal := regexp.MustCompile(`"(THAW_[A-Z0-9_]*[A-Z0-9])"`)
	root, found := filepath.Join("..", ".."), 0
	for _, part := range []string{"activator", "functions", "loader", "platform", "runtime"} {
		err := filepath.WalkDir(filepath.Join(root, part), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				if found++; !slices.Contains(known, m[1]) {
					t.Errorf("%s reads %s, of which thaw serve warns", path, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 20 {
		t.Errorf("%d variables are found", found)
	}
}
