package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// runCLI runs the program as main would.
func runCLI(t *testing.T, p Programs, env map[string]string, args ...string) (out, errs string, exit int) {
	t.Helper()
	if p.Getenv == nil {
		p.Getenv = func(k string) string { return env[k] }
	}
	var o, e bytes.Buffer
	exit = Main(t.Context(), args, strings.NewReader(""), &o, &e, p)
	return o.String(), e.String(), exit
}

func TestServeSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "thaw.yaml")
	if err := os.WriteFile(file, []byte("addr: 127.0.0.1:1\nmemory: 2Gi\nhost: [a.example, b.example]\ngpus: 2\ngpu-hour-price: 2.5\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	var got ServeConfig
	p := Programs{Serve: func(_ context.Context, c ServeConfig, _, _ io.Writer) error { got = c; return nil }}
	env := map[string]string{"HOME": dir, "THAW_ADDR": "127.0.0.1:2", "THAW_CONFIG": file, "THAW_STORE": "1Ti", "THAW_CURRENCY": "EUR"}
	if _, errs, exit := runCLI(t, p, env, "serve", "--addr", "127.0.0.1:3", "--leave-engines"); exit != 0 {
		t.Fatal(errs)
	}
	want := ServeConfig{Addr: "127.0.0.1:3", Data: filepath.Join(dir, ".local/share/thaw"), GPUs: 2,
		Memory: 2 << 30,
		Store:  1 << 40, MaxBody: 32 << 20, ClientShare: 50, Hold: "hold", CacheBytes: 256 << 20, Host: []string{"a.example", "b.example"}, LeaveEngines: true, Warm: "auto", Confine: "auto", Vulnerable: "refuse", Caches: "local", Eviction: "lru", KeepAlive: "fixed", Prewarm: "off", PrewarmBudget: functions.Duration(time.Hour), Currency: "EUR", GPUHourPrice: 2.5, PeerAddr: "auto",
		OrphanTimeout: 60e9, Drain: 30e9, LogLevel: "info", LogFormat: "text"}
	if !equal(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}

	out, errs, exit := runCLI(t, p, env, "config", "view", "--show-origin", "--addr", "127.0.0.1:3")
	if exit != 0 {
		t.Fatal(errs)
	}
	for _, want := range []string{"# --addr", file + ":2", "THAW_STORE", "# default"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
	// What is shown is a file that says the same.
	again := filepath.Join(dir, "again.yaml")
	if err := os.WriteFile(again, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	before := got
	if _, errs, exit := runCLI(t, p, map[string]string{}, "serve", "--config", again, "--leave-engines"); exit != 0 || !equal(got, before) {
		t.Fatalf("%s\n%+v", errs, got)
	}
}

func equal(a, b ServeConfig) bool {
	x, y := kit.Settings(&a), kit.Settings(&b)
	for i := range x {
		if x[i].Text() != y[i].Text() {
			return false
		}
	}
	return true
}

func TestExampleIsAFile(t *testing.T) {
	out, _, exit := runCLI(t, Programs{}, nil, "serve", "--example-config")
	if exit != 0 {
		t.Fatal(exit)
	}
	// With every line uncommented it says what the defaults say.
	var lines []string
	for l := range strings.Lines(out) {
		if strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "# ") {
			l = l[1:]
		}
		lines = append(lines, l)
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HOME": "/home/x"}
	var got []ServeConfig
	p := Programs{Serve: func(_ context.Context, c ServeConfig, _, _ io.Writer) error { got = append(got, c); return nil }}
	for _, args := range [][]string{{"serve"}, {"serve", "--config", file}} {
		if _, errs, exit := runCLI(t, p, env, args...); exit != 0 {
			t.Fatal(errs)
		}
	}
	if !equal(got[0], got[1]) {
		t.Errorf("got %+v, want %+v", got[1], got[0])
	}
	schema, _, exit := runCLI(t, Programs{}, nil, "serve", "--config-schema")
	for _, s := range kit.Settings(new(ServeConfig)) {
		if exit != 0 || !strings.Contains(schema, `"`+s.Name+`"`) || !strings.Contains(out, "\n#"+s.Name+":") {
			t.Errorf("%s is missing", s.Name)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("adr: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sessions := filepath.Join(t.TempDir(), "sessions.yaml")
	if err := os.WriteFile(sessions, []byte("sessions: redis://x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"serv"}, "hint: did you mean serve?"},
		{[]string{"serve", "--adr", "x"}, "hint: did you mean --addr?"},
		{[]string{"serve", "--memory", "much"}, `"much" is neither auto nor a size`},
		{[]string{"apply", "-f", "m.yaml"}, "did you mean deploy?"},
		{[]string{"scale", "m", "--replicas", "2"}, `"scale" is no verb of thaw`},
		{[]string{"run", "m", "--temp", "1"}, "did you mean --temperature?"},
		{[]string{"serve", "--gpus", "-1"}, `neither auto nor a number`},
		{[]string{"serve", "--hold", "no"}, `"no" is not one of hold, pad, 503`},
		{[]string{"serve", "--addr", "8080"}, `want HOST:PORT`},
		{[]string{"serve", "--config", bad}, `bad.yaml:1:1: adr: unknown key (did you mean addr?)`},
		{[]string{"serve", "--batches", "az://a/c"}, `"--batches" flag: not supported yet`},
		{[]string{"serve", "--sessions", "redis://x"}, `"--sessions" flag: not supported yet`},
		{[]string{"serve", "--config", sessions}, `sessions: not supported yet`},
		{[]string{"serve", "--origin", "*"}, `* would let every web page in`},
		{[]string{"serve", "--host", "http://models.local"}, `leave scheme, port and path out`},
		{[]string{"serve", "--port", "9000"}, `did you mean --addr HOST:PORT?`},
		{[]string{"list"}, `did you mean models?`},
		{[]string{"show", "m"}, `did you mean describe?`},
		{[]string{"push"}, `did you mean deploy?`},
		{[]string{"serve", "--origin", "http://localhost:3000", "--origin", "null"}, `"null" is no origin`},
		{[]string{"serve", "--currency", "euro"}, `"euro" is none: want three capital letters, such as EUR`},
		{[]string{"serve", "--gpu-hour-price", "cheap"}, `"cheap" is no number`},
		{[]string{"serve", "--gpu-hour-price", "-1"}, `gpu-hour-price must be 0 or more`},
		{[]string{"serve", "x"}, `"x" is more than thaw serve takes`},
		{[]string{"agent"}, `--server https://HOST:8090`},
		{[]string{"agent", "--server", "http://x"}, `want https://HOST:PORT`},
		{[]string{"agent", "--server", "https://x", "--advertise", "https://host"}, `is not where the server reaches this agent: want https://HOST:PORT`},
		{[]string{"agent", "--server", "https://x", "--advertise", "http://host:1"}, `is not where the server reaches this agent: want https://HOST:PORT`},
		{[]string{"keep"}, "--socket and --dir are needed"},
		{[]string{"engine", "x\x1b[31m"}, `"x\x1b[31m" is no embedded engine`},
		{[]string{"completion", "tcsh"}, "no shell"},
		{[]string{"completion"}, "the shell is missing"},
		{[]string{"config", "vew"}, "did you mean view?"},
	} {
		out, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": "/home/x"}, tt.args...)
		if exit != kit.ExitUsage || !strings.Contains(errs, tt.want) || out != "" {
			t.Errorf("%v: exit %d, stdout %q, stderr %s", tt.args, exit, out, errs)
		}
	}
}

// TestServerOfAnotherForm: a server without TLS is named as that, a key of a file may end with a
// line end, and --version prints what the verb does.
func TestServerOfAnotherForm(t *testing.T) {
	var key string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key = r.Header.Get("Authorization")
		http.Error(w, "{}", http.StatusTeapot)
	}))
	defer srv.Close()
	env := map[string]string{"HOME": "/home/x", "THAW_KEY": " sk-thaw \n"}
	if _, errs, _ := runCLI(t, Programs{}, env, "ps", "--server", strings.Replace(srv.URL, "http:", "https:", 1)); !strings.Contains(errs, "http:// in --server") {
		t.Error(errs)
	}
	if _, errs, _ := runCLI(t, Programs{}, env, "ps", "--server", srv.URL); key != "Bearer sk-thaw" {
		t.Errorf("sent %q: %s", key, errs)
	}
	if out, _, exit := runCLI(t, Programs{}, env, "--version"); exit != 0 || !strings.Contains(out, "thaw") {
		t.Errorf("exit %d: %s", exit, out)
	}
	if _, errs, _ := runCLI(t, Programs{}, env, "deploy", "--server", srv.URL, "-f", "https://h/m.yaml"); !strings.Contains(errs, "curl URL | thaw deploy -f -") {
		t.Error(errs)
	}
	_, errs, _ := runCLI(t, Programs{}, env, "deploy", "--server", srv.URL, "-f", "~/m.yaml")
	if !strings.Contains(errs, "write the whole path") {
		t.Error(errs)
	}
}

func TestPrograms(t *testing.T) {
	var got []string
	p := Programs{
		Engines: map[string]func(context.Context, []string, io.Writer, io.Writer) error{
			"ember": func(_ context.Context, args []string, _, _ io.Writer) error { got = args; return nil },
		},
		Bench: func(_ context.Context, args []string, _, _ io.Writer) error { got = args; return nil },
		Keep: func(_ context.Context, k KeepConfig, _ io.Writer) error {
			got = []string{k.Socket, k.Dir, k.OrphanTimeout.String()}
			return nil
		},
		Serve: func(ctx context.Context, _ ServeConfig, _, _ io.Writer) error {
			return &kit.Error{Exit: kit.ExitUnavailable, What: "a port", Hint: "another"}
		},
	}
	env := map[string]string{"HOME": "/home/x"}
	for _, tt := range []struct {
		args string
		want string
	}{
		{"engine ember --port 1 --help", "--port 1 --help"},
		{"bench coldstart -n 20", "coldstart -n 20"},
		{"keep --socket s --dir d --orphan-timeout 5s", "s d 5s"},
	} {
		if _, errs, exit := runCLI(t, p, env, strings.Fields(tt.args)...); exit != 0 || strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q %s", tt.args, got, errs)
		}
	}
	if _, errs, exit := runCLI(t, p, env, "serve"); exit != kit.ExitUnavailable || errs != "error: a port\nhint: another\n" {
		t.Errorf("%d %q", exit, errs)
	}
	if out, _, exit := runCLI(t, p, env, "version", "-o", "json"); exit != 0 || !strings.Contains(out, `"version"`) || !json.Valid([]byte(out)) {
		t.Errorf("exit %d, %s", exit, out)
	}
	if out, _, exit := runCLI(t, p, env, "version"); exit != 0 || !strings.HasPrefix(out, "thaw dev go1.") {
		t.Errorf("%q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, exit := runCLI(t, p, env, "completion", shell); exit != 0 || len(out) < 500 || errs != "" {
			t.Errorf("%s: %d %s", shell, exit, errs)
		}
	}
}

// TestOwnFlags: serve and agent have settings named like flags of the client
// verbs; theirs count, before and after the verb.
func TestOwnFlags(t *testing.T) {
	dir := t.TempDir()
	var data, server string
	p := Programs{
		Serve: func(_ context.Context, c ServeConfig, _, _ io.Writer) error { data = c.Data; return nil },
		Agent: func(_ context.Context, c AgentConfig, _, _ io.Writer) error {
			data, server = c.Data, c.Server
			return nil
		},
	}
	for _, args := range [][]string{{"serve", "--data", dir}, {"--data", dir, "serve"}, {"agent", "--server", "https://x", "--token-file", "f", "--data", dir}} {
		data = ""
		if _, errs, exit := runCLI(t, p, nil, args...); exit != 0 || data != dir {
			t.Errorf("%v: %d %s, data %q", args, exit, errs, data)
		}
	}
	if server != "https://x" {
		t.Error(server)
	}
	if _, errs, exit := runCLI(t, p, map[string]string{"THAW_SERVER": "https://y", "THAW_TOKEN_FILE": "f", "THAW_DATA": dir}, "agent"); exit != 0 || server != "https://y" {
		t.Errorf("%d %s %s", exit, errs, server)
	}
}

// TestGatewayNames: other names of settings are read, ours overrule them, and what is not
// built is refused.
func TestGatewayNames(t *testing.T) {
	for _, tt := range []struct {
		env         map[string]string
		level, errs string
	}{
		{map[string]string{}, "info", ""},
		{map[string]string{"GATEWAY_LOG_LEVEL": "WARNING"}, "warn", ""},
		{map[string]string{"GATEWAY_LOG_LEVEL": "error", "GATEWAY_DEBUG": "false"}, "error", ""},
		{map[string]string{"GATEWAY_LOG_LEVEL": "error", "GATEWAY_DEBUG": "1"}, "debug", ""},
		{map[string]string{"GATEWAY_DEBUG": "true", "THAW_LOG_LEVEL": "warn"}, "warn", ""},
		{map[string]string{"GATEWAY_LOG_LEVEL": "loud"}, "", `"loud" is not one of debug`},
		{map[string]string{"GATEWAY_REDIS_URL": "redis://x"}, "", "GATEWAY_REDIS_URL: not supported yet"},
		{map[string]string{"THAW_SESSIONS": "redis://x"}, "", "THAW_SESSIONS: not supported yet"},
	} {
		level := ""
		p := Programs{Serve: func(_ context.Context, c ServeConfig, _, _ io.Writer) error { level = c.LogLevel; return nil }}
		tt.env["HOME"] = "/home/x"
		_, errs, _ := runCLI(t, p, tt.env, "serve")
		if level != tt.level || !strings.Contains(errs, tt.errs) || tt.errs == "" && errs != "" {
			t.Errorf("%v: %q %s", tt.env, level, errs)
		}
	}
}

// TestHelp: every verb has examples, and they come before the flags.
func TestHelp(t *testing.T) {
	getenv := func(string) string { return "" }
	c := &connection{printer: printer{kit.NewTerminal(nil, io.Discard, io.Discard, getenv)}, programs: Programs{Getenv: getenv}}
	for _, cmd := range newRoot(c).Commands() {
		if cmd.Hidden {
			continue
		}
		out, errs, exit := runCLI(t, Programs{Bench: func(context.Context, []string, io.Writer, io.Writer) error { return nil }}, nil, "help",
			cmd.Name())
		if exit != 0 || errs != "" {
			t.Errorf("%s: exit %d, %s", cmd.Name(), exit, errs)
		}
		examples, usage := strings.Index(out, "Examples:"), strings.Index(out, "Usage:")
		if examples < 0 || usage < examples {
			t.Errorf("%s: examples do not come first:\n%s", cmd.Name(), out)
		}
	}
}
