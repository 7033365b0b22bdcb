package simulate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var mutants = flag.Bool("mutants", false, "put the list of small bugs into the sources, one at a time: some seed must find each")

// edit of a source file: old, which must occur exactly once, becomes new.
type edit struct{ file, old, new string }

// bugs are plausible mistakes. Each must be found by a seed. An edit whose old text is
// no longer in the source must be updated: the list follows the sources.
var bugs = []struct {
	name  string
	edits []edit
}{
	{"stop replicas without draining", []edit{
		{"platform/orchestrator/lifecycle.go", `if l.commands.inbox.inFlightOf(r.function, r.ID) > 0 && now < r.drainEnd {`, `if false {`},
		{"platform/orchestrator/lifecycle.go", `DrainSeconds: max(0, (r.drainEnd - now).Seconds())`, `DrainSeconds: 0`},
	}},
	{"route requests to stopping replicas", []edit{
		{"platform/orchestrator/publisher.go", "\t\tif r.Stopping || r.Cancelled {\n\t\t\tcontinue", "\t\tif r.Cancelled {\n\t\t\tcontinue"},
		{"platform/orchestrator/state.go", `r.status.State == functions.Ready && !r.Stopping && !r.Cancelled`, `r.status.State == functions.Ready && !r.Cancelled`},
	}},
	{"do not admit waiting requests when replicas are published", []edit{
		{"activator/admission/queue.go", "\tq.admit(now)\n\tswitch {", "\tswitch {"},
	}},
	{"queue twice as many requests as allowed", []edit{
		{"activator/admission/queue.go", `low.count >= q.limits.requests`, `low.count >= 2*q.limits.requests`},
	}},
	{"keep the replicas of a lost node", []edit{
		{"platform/orchestrator/commands.go", `l.lifecycle.removeReplica(r, "node_lost")`, `_ = r`},
	}},
	{"apply an empty catalogue without a second check", []edit{
		{"platform/orchestrator/catalog.go", `if now-c.shrunkAt < recheckAfter {`, `if false {`},
	}},
	{"reserve no host memory for sleeping replicas", []edit{
		{"platform/orchestrator/sleep.go", `r.SleepMemory = r.function.sleepMemory()`, `r.SleepMemory = 0`},
	}},
	{"ignore team quotas", []edit{
		{"platform/placement/team.go", `return most > 0 && gpus > 0 && (`, `return most < 0 && (`},
	}},
	{"start a second replica while one starts", []edit{
		{"platform/placement/scale.go", "\t\tdefault:\n\t\t\tstarting++", "\t\tdefault:\n\t\t\tstarting--"},
	}},
	{"ignore the last request in the idle time", []edit{
		{"platform/placement/scale.go", `due := max(f.LastEnd, r.ReadyAt, f.Lease) + idle`, `due := f.Lease + idle`},
	}},
	{"reserve a GPU for two replicas", []edit{
		{"platform/placement/rooms/room.go", `g.users += sign`, `g.users += 0`},
		{"platform/placement/rooms/room.go", `g.whole += sign`, `g.whole += 0`},
	}},
	{"evict busy replicas", []edit{
		{"platform/placement/evict.go", `case r.InFlight > 0 || f.Queued > 0 || somewhere > 0:`, `case false:`},
	}},
	{"start a new orchestrator without the demand of waiting requests", []edit{
		{"platform/orchestrator/turn.go", `	l.readDemand(now, all)`, `	if l.turns > 1 { l.readDemand(now, all) } else { l.inbox.takeDemand() }`},
	}},
	{"apply late heartbeats", []edit{
		{"platform/orchestrator/heartbeat.go", `if hb.Seq <= n.seq {`, `if false {`},
	}},
	{"evict guaranteed replicas for borrowers", []edit{
		{"platform/placement/evict.go", `>= t.teams[owner].Guaranteed`, `>= 0`},
	}},
}

var found = regexp.MustCompile(`seed (\d+) at \S+: invariant \d+: [^\n]*`)

// TestMutants shows that the checks can fail: a seed of the run (-seeds) or an experiment of
// testdata must find each bug. Without -mutants it only checks that each edit still
// applies.
func TestMutants(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	for _, b := range bugs {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay := struct{ Replace map[string]string }{map[string]string{}}
			for _, e := range b.edits {
				file := filepath.Join(root, e.file)
				from := file
				if changed, ok := overlay.Replace[file]; ok {
					from = changed
				}
				text, err := os.ReadFile(from)
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(string(text), e.old); n != 1 {
					t.Fatalf("%s has %d times what is to be changed:\n%s", e.file, n, e.old)
				}
				to := filepath.Join(dir, fmt.Sprint(len(overlay.Replace), "-", filepath.Base(file)))
				if err := os.WriteFile(to, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o644); err != nil {
					t.Fatal(err)
				}
				overlay.Replace[file] = to
			}
			if !*mutants {
				return // rebuilds everything for each bug
			}
			list, err := json.Marshal(overlay)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, "mutant.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "-overlay", filepath.Join(dir, "overlay.json"), ".")
			if text, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			began := time.Now()
			text, err := exec.CommandContext(t.Context(), program, "-test.run", "^Test(Experiments|Seeds)$", "-seeds", fmt.Sprint(*seeds), "-tries",
				"0").CombinedOutput()
			first := found.FindString(string(text))
			if err == nil || first == "" {
				t.Fatalf("not found in %d seeds, %v:\n%s", *seeds, time.Since(began), text)
			}
			t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), first)
		})
	}
}
