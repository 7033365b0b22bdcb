package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
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
