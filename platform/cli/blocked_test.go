package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

// TestBlockedState: what no node takes is not shown as staging.
func TestBlockedState(t *testing.T) {
	percent := 41
	for want, f := range map[string]api.Function{
		"blocked":     {State: functions.Downloading, Blocked: "capacity", Percent: &percent},
		"staging 41%": {State: functions.Downloading, Percent: &percent},
	} {
		if got := tables.StateWithPercent(f); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestFinalIsAnError: a model that no node can ever hold is not waited for, and the comment of
// a held stream says why one waits.
func TestFinalIsAnError(t *testing.T) {
	s := start(t)
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: blocked}\nspec: {engine: command, args: "+
		"[x, \"{port}\"], health: /h, resources: {gpus: 3}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.steps = []functions.Timeline{{ID: "cs-1", Function: "default/blocked", State: functions.Downloading, Progress: functions.NoProgress}}
	const why = "it needs 3 GPUs on one node, and the largest has 1"
	_, errs, exit := s.thaw(t, "", "deploy", "-f", file)
	if exit != 0 || !strings.Contains(errs, "warning: default/blocked: no node that is there could hold it: "+why) {
		t.Errorf("%d %s", exit, errs)
	}
	_, errs, exit = s.thaw(t, "", "deploy", "-f", file, "--wait")
	if exit != kit.ExitUnavailable || !strings.Contains(errs, "error: blocked cannot be loaded here: "+why) {
		t.Errorf("%d %s", exit, errs)
	}
	s.chat = func(req *httpserver.Request, res *httpserver.Response) {
		res.Set("content-type", "text/event-stream")
		res.Stream, res.Length = io.NopCloser(strings.NewReader(": thaw state=blocked position=2 why=its state=odd, or so\n"+answered)), -1
	}
	if _, errs, exit = s.thaw(t, "", "run", "blocked", "x"); exit != 0 ||
		!strings.Contains(errs, "blocked blocked: its state=odd, or so, number 2 in line\n") {
		t.Errorf("%d %s", exit, errs)
	}
}
