package schedule

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	var progress []string
	o := Options{
		Parts: map[string]bool{"decision": true, "cold": true, "keep": true}, Dir: dir, Models: 400, Rounds: 60,
		Progress: func(s string) { progress = append(progress, s) },
	}
	r, err := Run(t.Context(), o, Result{Provenance: report.NewProvenance(Kind, []string{"schedule"}, time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(progress, " ") != "decision cold keep" || r.Decision == nil || r.Decision.GPUs != 40 ||
		r.Decision.WakeP99 < r.Decision.WakeP50 || r.Decision.FullP50 <= 0 {
		t.Errorf("%v %+v", progress, r.Decision)
	}
	// A part that cannot run is reported, and counts as no met goal.
	if len(r.Missing) != 2 || r.Cold != nil || r.Keep != nil || len(r.Goals) != 2 {
		t.Errorf("%+v", r)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"schedule.json", "schedule.md"} {
		if found, _ := filepath.Glob(filepath.Join(dir, want)); len(found) != 1 {
			t.Errorf("%s is not there", want)
		}
	}
	if text := r.Markdown(); !strings.Contains(text, "a wake decision") || !strings.Contains(text, "THAW_TRACES") {
		t.Error(text)
	}
}

func TestJudge(t *testing.T) {
	r := Result{
		Cold: &Cold{Best: "next-use", ToLRU: 0.41, ToFuture: 1.05, ToFurthest: 1.2}, Keep: &Keep{Colds: 0.4, Idle: 1.1},
		Fair:      &Fair{Cases: []FairCase{{Name: "x", Rise: 3, Bound: 2}}},
		Agreement: &Agreement{LiveCold: 5, SimCold: 5, Ratio: 1.2}, Day: &Day{Requests: 10_000_000, Wall: 599, RSS: 5 << 30},
	}
	r.checkGoals()
	var met []bool
	for _, g := range r.Goals {
		met = append(met, g.Met)
	}
	if want := []bool{false, true, false, true, false, false, true, false, true, false}; !reflect.DeepEqual(met, want) {
		t.Errorf("%v: %+v", met, r.Goals)
	}
	if r.Goals.Missed() == nil || !strings.Contains(r.Markdown(), "NO") {
		t.Error("a goal was missed and nothing says so")
	}
}

// TestScript: a seed's load is reproducible, in time order, and skips times at which
// milliseconds decide whether a model is still up.
func TestScript(t *testing.T) {
	a := script(200, 2)
	if !reflect.DeepEqual(a, script(200, 2)) || reflect.DeepEqual(a, script(200, 3)) {
		t.Error("the load goes with the seed")
	}
	last := map[int]time.Duration{}
	for i, x := range a {
		if i > 0 && x.at < a[i-1].at {
			t.Fatal("out of order")
		}
		if at, ok := last[x.model]; ok {
			if d := x.at - at - agreeIdle; d > -agreeMargin && d < agreeMargin {
				t.Errorf("request %d comes %v from its model's rest", i, d)
			}
		}
		last[x.model] = x.at
	}
}
