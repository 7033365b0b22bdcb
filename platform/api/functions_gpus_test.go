package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

type dividedSizer struct{}

func (dividedSizer) CheckWeights(context.Context, *functions.Model) error { return nil }

func (dividedSizer) CheckGPUs(context.Context, *functions.Model) error {
	return errors.New("32 heads cannot be divided among 3 GPUs")
}

func (dividedSizer) Size(_ context.Context, m *functions.Model) (functions.Resources, string) {
	return m.Spec.Resources, ""
}

// TestDeployChecksGPUs: a deploy whose GPUs cannot share the model is refused at spec.resources.gpus.
func TestDeployChecksGPUs(t *testing.T) {
	r := start(t, func(o *Options) { o.Functions.Sizer = dividedSizer{} })
	status, _, body := r.ask(t, "PUT", "/api/v1/functions/a/new", r.admin, modelFile("a", "new"))
	if status != 400 || !strings.Contains(string(body), "spec.resources.gpus: 32 heads cannot be divided among 3 GPUs") {
		t.Errorf("%d %s", status, body)
	}
}

type anySizer struct{ dividedSizer }

func (anySizer) CheckGPUs(context.Context, *functions.Model) error { return nil }

// TestDeployWarnsOfMissingFolder: a model whose source is not on the server's machine is kept, with a warning.
func TestDeployWarnsOfMissingFolder(t *testing.T) {
	r := start(t, func(o *Options) { o.Functions.Sizer = anySizer{} })
	status, _, body := r.ask(t, "PUT", "/api/v1/functions/a/new", r.admin, modelFile("a", "new"))
	if status != 201 || !strings.Contains(string(body), "/w/x is not on this machine") {
		t.Errorf("%d %s", status, body)
	}
}

// TestWrongRequests: an error names the member, query or method that is wrong and what is taken.
func TestWrongRequests(t *testing.T) {
	r := start(t, nil)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/keys", `{"team":5}`, "`team` is a number, not a string"},
		{"POST", "/api/v1/keys", `{"teem":"a"}`, "`teem` is no member of it"},
		{"POST", "/api/v1/keys", `{"team":"A B"}`, "The team `A B` is no DNS label"},
		{"POST", "/api/v1/keys", `team=a`, "invalid character"},
		{"GET", "/api/v1/events?limit=5", "", "The query `limit` is not one that this endpoint takes (each once); it takes: watch"},
		{"POST", "/api/v1/functions", "{}", "Use GET here."},
		{"PUT", "/api/v1/functions/Team/x", "a: 1", "`Team/x` is no TEAM/NAME"},
		{"GET", "/api/v1/bogus", "", "The paths of the API are at /openapi.json"},
	} {
		if status, _, body := r.ask(t, c.method, c.path, r.admin, c.body); status < 400 || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s, without %s", c.method, c.path, status, body, c.want)
		}
	}
}

// TestPathsOfOthersOnOpenServer: a dummy key, as every client sends one, hides no hint about the path,
// and the error has the form of the API that is meant.
func TestPathsOfOthersOnOpenServer(t *testing.T) {
	r := start(t, func(o *Options) { o.Access.Open = true })
	for path, want := range map[string]string{
		"/chat/completions":                      `{"error":{"message":"Unknown endpoint: this server does not answer /chat/completions.`,
		"/openai/deployments/m/chat/completions": "Nearest: `/v1/chat/completions`",
		"/api/chat":                              `{"error":"Unknown endpoint: this server does not answer /api/chat. Nearest: `,
		"/anthropic/v1/messages":                 `{"type":"error","error":{"type":"not_found_error","message":"Unknown endpoint`,
	} {
		if status, _, body := r.ask(t, "POST", path, "x", "{}"); status != 404 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/functions", "x", ""); status != 401 ||
		!strings.Contains(string(body), "begin with sk-thaw-") {
		t.Errorf("%d %s", status, body)
	}
}
