package coldstart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

func takes(method string, start string, first ...float64) (out []Take) {
	for _, f := range first {
		out = append(out, Take{Method: method, FirstToken: f, CPU: f * 2, Start: start, Timeline: &functions.Timeline{Phases: []functions.Span{
			{Phase: functions.PhaseLoad, Start: 0.1, Duration: f, Parts: []functions.Part{{Name: "weights", Start: 0.2, Duration: 0.3}}},
		}}})
	}
	return out
}

func TestReduceEngine(t *testing.T) {
	r := EngineResult{Provenance: report.NewProvenance(EngineKind, nil, time.Now()), Version: "0.32.0",
		Memory: &Shared{Plain: 2200 << 20, Warm: 700 << 20, Ratio: 0.32}}
	for _, l := range [][]Take{
		takes(HandStarted, "", 20, 18, 22), takes(WithoutForkServer, functions.StartPlain, 20.2, 19, 21), takes(WithForkServer, functions.StartWarm, 1.5, 1.6, 1.4), takes(Forked, "", 1.48, 1.57, 1.39),
	} {
		r.Takes = append(r.Takes, l...)
	}
	r.reduce()
	if len(r.Methods) != 4 || r.Methods[0].Ratio != 1 || r.Methods[2].Ratio != 0.075 || r.Adds.P50 < 0.0199 || r.Adds.P50 > 0.0201 {
		t.Errorf("%+v, adds %+v", r.Methods, r.Adds)
	}
	for _, g := range r.Goals {
		if !g.Met {
			t.Errorf("missed: %+v", g)
		}
	}
	if len(r.Goals) != 4 {
		t.Errorf("%d goals", len(r.Goals))
	}
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "coldstart-vllm.md"))
	for _, want := range []string{"| thaw, warm interpreter |", "0.075x", "- weights", "700 MiB"} {
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("no %q in the page: %v", want, err)
		}
	}
	// One round, or scattered rounds, are too few to judge a small difference.
	one := EngineResult{Takes: append(append(takes(HandStarted, "", 140), takes(WithForkServer, functions.StartWarm, 10.5)...),
		takes(Forked, "", 14.6)...)}
	one.reduce()
	if g := one.Goals[2]; g.Met || !strings.Contains(g.Got, "cannot tell") {
		t.Errorf("%+v", g)
	}
	// A plain start where a warm one was expected is reported, not averaged.
	r.Takes[6].Start = functions.StartPlain
	r.reduce()
	if last := r.Goals[len(r.Goals)-1]; last.Met || len(r.Goals) != 5 {
		t.Errorf("%+v", last)
	}
	(&EngineResult{}).reduce() // no measurement: no panic
}
