package api

import (
	"testing"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
)

// TestSpecHidesEnvironment: an engine's environment is for admins; everybody
// else sees which variables there are.
func TestSpecHidesEnvironment(t *testing.T) {
	m := functions.NewModel()
	m.Spec.Env = map[string]string{"HF_TOKEN": "hf_secret"}
	for _, c := range []struct {
		who  caller
		want string
	}{
		{caller{}, hiddenEnv},
		{caller{authenticated: true, id: auth.Identity{Team: "red"}}, hiddenEnv},
		{caller{authenticated: true, id: auth.Identity{Team: "red", Admin: true}}, "hf_secret"},
	} {
		if got := c.who.spec(m).Env["HF_TOKEN"]; got != c.want {
			t.Errorf("%+v sees %q, want %q", c.who, got, c.want)
		}
	}
	if m.Spec.Env["HF_TOKEN"] != "hf_secret" {
		t.Error("the model itself was changed")
	}
}
