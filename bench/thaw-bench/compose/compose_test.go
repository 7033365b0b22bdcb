package compose

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// TestSimulated runs the parts that need no platform, and writes their page.
func TestSimulated(t *testing.T) {
	o := Quick()
	o.Progress = func(string) {}
	var r Result
	var err error
	if r.SimulatedEnsemble, err = simulateEnsemble(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	if r.SimulatedBatch, err = simulateBatch(t.Context(), &o); err != nil {
		t.Fatal(err)
	}
	for _, w := range r.SimulatedEnsemble.Ways {
		if len(w.Seconds) != o.EnsembleSeeds || w.Median <= 0 || w.most() < 1 || len(w.Starts) != 6 || w.GPU <= 0 {
			t.Errorf("%+v", w)
		}
	}
	if b := r.SimulatedBatch; b.Lines != o.SimulatedLines || b.Loads.all() < 5 || b.NaiveLoads.all() <= b.Loads.all() || b.Share <= 0 ||
		b.Share >= 1 {
		t.Errorf("%+v", b)
	}
	r.checkGoals()
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "compose.md")); err != nil || !bytes.Contains(page, []byte("| Composition |")) ||
		!bytes.Contains(page, []byte("| the batch |")) {
		t.Errorf("%v: %s", err, page)
	}
}

// TestGoals: what is missed is said.
func TestGoals(t *testing.T) {
	ensemble := func(ratio float64, loads int) *Ensemble {
		e := newEnsemble()
		for _, m := range append([]string{coordinator}, members...) {
			e.Ways[asComposition].Starts[m] = loads
		}
		e.Ratio = ratio
		return e
	}
	for _, c := range []struct {
		r   Result
		met []bool
	}{
		{Result{Cost: &Cost{AddedP50: 99, Goal: costGoal}, Cancel: &Cancel{Ended: report.Summary{Max: 0.2}}}, []bool{true, true}},
		{Result{Cost: &Cost{AddedP50: 101, Goal: costGoal}, Cancel: &Cancel{Ended: report.Summary{Max: 1.2}}}, []bool{false, false}},
		{Result{SimulatedEnsemble: ensemble(0.75, 1), Ensemble: ensemble(0.76, 2)}, []bool{true, true, false, false}},
		{Result{SimulatedBatch: &Batch{Share: 0.05, Interactive: 9, Alone: 10, With: 11}, Batch: &Batch{Share: 0.06, Interactive: 9, Alone: 10, With: 11.1}}, []bool{true, true, false, false}},
		{Result{Batch: &Batch{Share: 0.01}}, []bool{true}},
	} {
		c.r.checkGoals()
		if len(c.r.Goals) != len(c.met) {
			t.Fatalf("%+v", c.r.Goals)
		}
		for i, g := range c.r.Goals {
			if g.Met != c.met[i] {
				t.Errorf("%+v", g)
			}
		}
	}
}

// TestLoads: the GPU seconds of a start go from its order to READY, or to its end.
func TestLoads(t *testing.T) {
	var l loads
	at := func(s float64) time.Time { return time.Unix(0, int64(s*1e9)) }
	for _, e := range []functions.Event{
		{Kind: "start", Function: "default/m1", Replica: "a", At: at(1)}, {Kind: "start", Function: "default/other", Replica: "x", At: at(1)},
		{Kind: "start", Function: "default/m2", Replica: "b", At: at(2)}, {Kind: "ready", Function: "default/m1", Replica: "a", At: at(3.5)},
		{Kind: "ended", Function: "default/m2", Replica: "b", At: at(4)}, {Kind: "ended", Function: "default/m1", Replica: "a", At: at(9)},
		{Kind: "start", Function: "default/m1", Replica: "c", At: at(10)}, {Kind: "ready", Function: "default/m1", Replica: "c", At: at(11)},
	} {
		l.add(e, members)
	}
	if l.Seconds != 5.5 || l.all() != 3 || l.Starts["m1"] != 2 {
		t.Errorf("%+v", l)
	}
}
