package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
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
