package api

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// TestBlocked: a model that no node can hold says so with the reason, also while it is said to
// be starting; one with a replica that serves does not.
func TestBlocked(t *testing.T) {
	r := start(t, nil)
	n := functions.Name{Team: "a", Name: "one"}
	for _, x := range []struct {
		s    snapshot.Snapshot
		want bool
	}{
		{snapshot.Snapshot{Name: n, State: functions.Downloading}, true},
		{snapshot.Snapshot{Name: n}, true},
		{snapshot.Snapshot{Name: n, State: functions.Ready, Replicas: []snapshot.Replica{{ID: "r-1"}}}, false},
	} {
		x.s.Blocked = &snapshot.Blocked{Code: "capacity", Message: "it needs 1 GPU, and no node has one"}
		r.mu.Lock()
		r.snapshots[n] = x.s
		r.mu.Unlock()
		_, _, body := r.ask(t, "GET", "/api/v1/functions/a/one", r.admin, "")
		if !strings.Contains(body, "no node has one") || strings.Contains(body, `"blocked":"capacity"`) != x.want {
			t.Errorf("%+v: %s", x.s, body)
		}
	}
}
