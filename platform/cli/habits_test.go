package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestHabitsOfOtherTools: flags, verbs, kinds and addresses of other tools are refused with what
// they are here.
func TestHabitsOfOtherTools(t *testing.T) {
	for args, want := range map[string]string{
		"models --json":                             "did you mean -o json?",
		"doctor --format json":                      "did you mean -o json?",
		"run tiny --prompt hi":                      "the prompt is an argument: thaw run NAME",
		"serve -p 8080":                             "did you mean --addr HOST:PORT?",
		"serve --host 0.0.0.0":                      "did you mean --addr 0.0.0.0:8080?",
		"serve --host ::":                           "did you mean --addr [::]:8080?",
		"serve --memory 1Mi":                        "memory: 1Mi is too small for any engine: want 16Mi or more, with its unit, such as 24Gi",
		"serve --gpu-memory 24":                     "gpu-memory: 24 is too small for any engine",
		"agent --server https://a:8090 --memory 64": "memory: 64 is too small for any engine",
		"ps --timeout 5":                            "a duration has a unit, such as 5s or 2m",
		"top":                                       "did you mean ps?",
		"restart tiny":                              "did you mean stop?",
		"get pods":                                  "did you mean replicas?",
		"run tiny --max-tokens abc x":               `invalid argument "abc" for "--max-tokens" flag: that is no whole number`,
		"run tiny --temperature abc x":              `invalid argument "abc" for "--temperature" flag: that is no number`,
		"teams":                                     "thaw get teams lists them",
		"batches":                                   "thaw serve answers /v1/batches",
		"install":                                   "thaw-knative install",
		"serve --max-body 1":                        "max-body: 1 is too small for any request: want 1Ki or more",
		"serve --debug":                             "did you mean --log-level debug?",
		"serve -v":                                  "did you mean --log-level debug?",
		"serve --model x":                           "models are files of --functions DIR; thaw init SOURCE writes one",
		"serve Qwen/Qwen2.5":                        "models are files of --functions DIR; thaw init SOURCE writes one",
		"run tiny --stream hi":                      "an answer is printed as it comes: leave it out",
		"run tiny -p hi":                            "the prompt is an argument: thaw run NAME",
		"logs tiny --lines 5":                       "did you mean --tail N?",
		"rm -f tiny":                                "nothing is asked: leave it out",
		"rm --force tiny":                           "nothing is asked: leave it out",
		"ps -a":                                     "thaw models lists those at rest, too",
		"deploy -f m.yaml --replicas 2":             "scale: {min: N, max: N} in the model's file",
		"keys revoke x":                             "did you mean rm?",
		"pull llama3.2:1b":                          "a repository of Hugging Face is hf://ORG/REPO",
		"pull Qwen/Qwen2.5":                         "a repository of Hugging Face is hf://Qwen/Qwen2.5",
		"pull hf.co/o/r:Q4_K_M":                     `did you mean hf://o/r, with weights: "*Q4_K_M*" beside it?`,
		"pull huggingface.co/o/r":                   "did you mean hf://o/r?",
		"describe huggingface://o/":                 "did you mean hf://o/?",
	} {
		out, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir()}, strings.Fields(args)...)
		if exit != kit.ExitUsage || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%s: exit %d, %s%s", args, exit, out, errs)
		}
	}
}

// TestLongFlagsWithOneDash: a long flag with one dash, or near to one, is refused by its name; what
// short flags make of it is not done, and short flags with their values stay what they are.
func TestLongFlagsWithOneDash(t *testing.T) {
	for args, want := range map[string]string{
		"ps -server x":              "error: -server has one dash: a flag of more than one letter has two\nhint: did you mean --server?",
		"ps -sever x":               "did you mean --server?",
		"serve -addr=:1":            "did you mean --addr=:1?",
		"models -output json":       "did you mean --output?",
		"deploy -file m.yaml":       "did you mean --filename?",
		"deploy -filename m.yaml":   "did you mean --filename?",
		"logs tiny -follow":         "did you mean --follow?",
		"ps -quiet":                 "did you mean --quiet?",
		"ps -queit":                 "did you mean --quiet?",
		"-help":                     "did you mean --help?",
		"-version":                  "did you mean --version?",
		"ps -help":                  "did you mean --help?",
		"cache ls -data d":          "did you mean --data?",
		"ps -zzz":                   "a flag of more than one letter has two dashes; thaw ps --help lists the flags",
		"run tiny -- -help":         "no server at",
		"run tiny --system -help x": "no server at",
		"ps -ojson -q":              "no server at",
	} {
		out, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir(), "THAW_SERVER": "127.0.0.1:1"}, strings.Fields(args)...)
		if exit == 0 || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%s: exit %d, %s%s", args, exit, out, errs)
		}
	}
}

// TestKeysThatNoHeaderCarries: the key is refused before anything is sent, by the character and
// where it came from, and is not shown.
func TestKeysThatNoHeaderCarries(t *testing.T) {
	for key, want := range map[string]string{
		"sk-secret\u2014x":      `has '—' (U+2014) as character 10, which no key has`,
		"sk-secret\nsk-other":   `has '\n' (U+000A) as character 10`,
		"sk-secret other":       `has ' ' (U+0020) as character 10`,
		"\u201csk-secret\u201d": `has '“' (U+201C) as character 1`,
		"sk-secret\x7f":         `has '\x7f' (U+007F) as character 10`,
	} {
		for _, from := range []string{"THAW_KEY", "--key"} {
			env, args := map[string]string{"HOME": t.TempDir(), "THAW_SERVER": "127.0.0.1:1"}, []string{"ps"}
			if from == "--key" {
				args = append(args, "--key", key)
			} else {
				env["THAW_KEY"] = key
			}
			_, errs, exit := runCLI(t, Programs{}, env, args...)
			if exit != kit.ExitUsage || !strings.Contains(errs, "the key of "+from+" "+want) || strings.Contains(errs, "secret") {
				t.Errorf("%q from %s: exit %d, %s", key, from, exit, errs)
			}
		}
	}
}

// TestArgumentsThatSayNothing: an empty argument, a key in place of its id, a negative bound and an
// address with a password are refused at once, and no secret is shown.
func TestArgumentsThatSayNothing(t *testing.T) {
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"keys", "rm", ""}, "an argument is empty"},
		{[]string{"describe", ""}, "an argument is empty"},
		{[]string{"deploy", "-f", ""}, "the name of a file is empty"},
		{[]string{"deploy", "-f", "-"}, "there is no function in the standard input\nhint: an object begins with apiVersion"},
		{[]string{"keys", "rm", "sk-thaw-secret"}, "that is a key itself, and its id is wanted\nhint: thaw keys list has the ids"},
		{[]string{"ps", "--timeout=-1s"}, "--timeout: -1s is no time to wait"},
		{[]string{"ps", "--server", "http://u:secret@127.0.0.1:1"}, "the address of a server has no user, query or fragment"},
		{[]string{"ps", "--server", "::1"}, "want such as http://127.0.0.1:8080 or http://[::1]:8080"},
		{[]string{"serve", "--addr", "::1:8080"}, `--addr: addr: "::1:8080" is no address: want HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080`},
		{[]string{"serve", "--config", "/nope.yaml"}, "--config: open /nope.yaml: no such file or directory\nhint: it names one file, which this user may read"},
	} {
		_, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir(), "THAW_SERVER": "127.0.0.1:1"}, x.args...)
		if exit != kit.ExitUsage || !strings.Contains(errs, x.want) || strings.Contains(errs, "secret") {
			t.Errorf("%v: exit %d, %s", x.args, exit, errs)
		}
	}
	for variable, want := range map[string]string{
		"THAW_ADDR=8080":          `settings: THAW_ADDR: addr: "8080" is no address`,
		"THAW_CONFIG=/nope.yaml":  "THAW_CONFIG: open /nope.yaml",
		"THAW_LOG_LEVEL= verbose": `THAW_LOG_LEVEL: "verbose" is not one of`,
	} {
		name, value, _ := strings.Cut(variable, "=")
		_, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir(), name: value}, "config", "view")
		if exit != kit.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s", variable, exit, errs)
		}
	}
}

// TestDataOfAnotherUser: a file of the data folder that this user may not read is told as that.
func TestDataOfAnotherUser(t *testing.T) {
	data := t.TempDir()
	for path, hint := range map[string]bool{data + "/keys.json.key": true, "/elsewhere": false} {
		p := Programs{Serve: func(context.Context, ServeConfig, io.Writer, io.Writer) error {
			return fmt.Errorf("keys: %w", &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES})
		}}
		_, errs, exit := runCLI(t, p, map[string]string{"HOME": data}, "serve", "--data", data)
		if exit != kit.ExitFailed || !strings.Contains(errs, "error: keys: open "+path+": permission denied") ||
			strings.Contains(errs, "hint: what is below --data belongs to the user that served before") != hint {
			t.Errorf("%s: exit %d, %s", path, exit, errs)
		}
	}
}

// TestServersThatAreNotThaw: an answer of something else is told as that, with its own words, and a
// proxy as what did not answer.
func TestServersThatAreNotThaw(t *testing.T) {
	for answer, want := range map[string]string{
		"<html>hello</html>": `answered with "<html>hello</html>", and not as thaw does: is it the address of a thaw server?`,
		"":                   `answered with ""`,
		"302":                "answered 302 Found (go to /login), and not as thaw does",
		"unknown":            "hint: is the server of another version than this program (thaw version)?",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch answer {
			case "302":
				w.Header().Set("Location", "/login")
				w.WriteHeader(302)
			case "unknown":
				w.WriteHeader(404)
				_, _ = w.Write([]byte(`{"error":{"message":"Unknown endpoint.","code":"unknown_endpoint"}}`))
			default:
				_, _ = w.Write([]byte(answer))
			}
		}))
		for _, args := range []string{"ps", "models", "run default/tiny hi"} {
			want := want
			switch {
			case strings.HasPrefix(args, "run") && answer == "":
				want = "the stream broke off before the answer was whole"
			case strings.HasPrefix(args, "run") && strings.HasPrefix(want, "answered with"):
				want = `answered with "text/html; charset=utf-8", and not as thaw does`
			}
			_, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir()}, append(strings.Fields(args), "--server", srv.URL)...)
			if exit == 0 || !strings.Contains(errs, want) {
				t.Errorf("%q, %s: exit %d, %s", answer, args, exit, errs)
			}
		}
		srv.Close()
	}
}

// TestHintsOfTLS: a certificate that is refused is told with what to name.
func TestHintsOfTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	_, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir()}, "ps", "--server", srv.URL)
	if exit != kit.ExitUnavailable || !strings.Contains(errs, "hint: SSL_CERT_FILE=FILE names the certificates of the authority") {
		t.Errorf("exit %d, %s", exit, errs)
	}
}

// TestFormsOfOutput: a form that there is not is refused by every verb, and what is not there by its
// kind and how to list it.
func TestFormsOfOutput(t *testing.T) {
	s := start(t)
	for args, want := range map[string]string{
		"check " + s.dir + " -o foo":                `"foo" is no form of output`,
		"version -o foo":                            `"foo" is no form of output`,
		"ps -o foo":                                 `"foo" is no form of output`,
		"keys list -o foo":                          `"foo" is no form of output`,
		"get teams nope":                            "there is no team nope\nhint: thaw get teams lists them",
		"get coldstarts nope":                       "there is no coldstart nope\nhint: thaw get coldstarts lists them",
		"config view --config " + s.dir + "/m.yaml": "m.yaml:1:1: apiVersion: unknown key (the folder --functions has the files of models)",
	} {
		if err := os.WriteFile(s.dir+"/m.yaml", []byte(aModel), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errs, exit := s.thaw(t, "", strings.Fields(args)...); exit == 0 || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%s: exit %d, %s%s", args, exit, out, errs)
		}
	}
}

// waitingInput is a standard input on which nothing comes; asked is closed by the first Read.
type waitingInput struct{ asked, end chan struct{} }

func (w waitingInput) Read([]byte) (int, error) {
	close(w.asked)
	<-w.end
	return 0, io.EOF
}

// TestInterruptWhileInputIsAwaited: one interrupt ends a verb that waits for standard input.
func TestInterruptWhileInputIsAwaited(t *testing.T) {
	for _, args := range []string{"check -", "deploy -f -", "run default/tiny -", "route -f -"} {
		ctx, cancel := context.WithCancel(t.Context())
		in := waitingInput{make(chan struct{}), make(chan struct{})}
		go func() {
			<-in.asked
			cancel()
		}()
		exit := Main(ctx, append(strings.Fields(args), "--server", "127.0.0.1:1"), in, io.Discard, io.Discard,
			Programs{Getenv: func(string) string { return "" }})
		if close(in.end); exit != kit.ExitInterrupted {
			t.Errorf("%s: exit %d", args, exit)
		}
	}
}

// TestWakeOfAFailedModel: it is asked to start, and the start that failed before is told.
func TestWakeOfAFailedModel(t *testing.T) {
	s := start(t)
	out, errs, exit := s.thaw(t, "", "wake", "ml/broken")
	if exit != 0 || out != "ml/broken failed\n" || !strings.Contains(errs, "its last start failed, which thaw describe ml/broken explains") {
		t.Errorf("exit %d, %s%s", exit, out, errs)
	}
}

// TestServerWithV1: the address that clients of the OpenAI API are given is one of a server, too.
func TestServerWithV1(t *testing.T) {
	var paths []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		_, _ = w.Write([]byte(`{"items":[]}`))
	}))
	defer srv.Close()
	for _, suffix := range []string{"", "/", "/v1", "/v1/"} {
		if _, errs, exit := runCLI(t, Programs{}, map[string]string{"HOME": t.TempDir()}, "get", "nodes", "--server", srv.URL+suffix); exit != 0 {
			t.Errorf("%s: %s", suffix, errs)
		}
	}
	if strings.Join(paths, " ") != strings.Repeat("/api/v1/nodes ", 3)+"/api/v1/nodes" {
		t.Error(paths)
	}
}

// brokenOutput is a stream that takes nothing, as a full disk.
type brokenOutput struct{}

func (brokenOutput) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutputThatCannotBeWritten: what cannot be printed is an error, and none of the server.
func TestOutputThatCannotBeWritten(t *testing.T) {
	s := start(t)
	for _, args := range []string{"get functions", "get functions -o json", "models", "describe llama", "version", "--help"} {
		var errs bytes.Buffer
		exit := Main(t.Context(), append(strings.Fields(args), "--server", s.url), strings.NewReader(""), brokenOutput{}, &errs,
			Programs{Getenv: func(string) string { return "" }})
		if exit != kit.ExitFailed || !strings.Contains(errs.String(), "the output could not be written: no space left on device") {
			t.Errorf("%s: exit %d, %s", args, exit, errs.String())
		}
	}
}
