package knative

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// TestTeamObjects compares the rendered objects of teams with golden files.
func TestTeamObjects(t *testing.T) {
	full := functions.Team{Metadata: functions.Metadata{Name: "ml"},
		Spec: functions.TeamSpec{GPUs: functions.TeamGPUs{Guaranteed: 1, Max: 4},
			Limits: functions.Limits{RequestsPerMinute: 60, StoreBytes: 200 << 30}}}
	for name, x := range map[string]struct {
		team functions.Team
		s    team.Settings
	}{
		"full":  {full, team.Settings{Groups: []string{"oidc:ml"}, Users: []string{"ann", "bob"}, System: "thaw-system", Knative: "knative-serving"}},
		"least": {functions.Team{Metadata: functions.Metadata{Name: "a"}}, team.Settings{}},
	} {
		objects, err := team.Render(&x.team, x.s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ObjectsYAML(objects...)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("team", "testdata", name+".yaml")
		if *update {
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, got, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: it is not %s any more (-update writes it) %v:\n%s", name, file, err, got)
		}
	}
}
