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
