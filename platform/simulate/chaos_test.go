// These tests inject faults into the simulator and check the design's invariants after
// every event. A seed determines everything.
//
// # An experiment
//
// An Experiment is plain data: hosts, models, teams, and a list of faults with their times. A
// fault is a burst of requests, or a failure: a node that dies or is partitioned, a slow
// disk, starts that fail, engines that crash, hang or run out of memory, unhealthy GPUs,
// messages that are delayed, doubled or lost, clocks that jump, a catalogue that is
// empty for a while, an orchestrator that stalls, is replaced in the middle of its work,
// or is killed. NewExperiment draws one from a seed. Every experiment ends with a part without faults: all
// faults are undone, and every model gets one more request and must answer it.
//
// # Invariants
//
// Run runs an experiment and checks the invariants of the design (section 8, with its
// numbers):
//
//	1   every request ends exactly once, and fails only where a fault caused it
//	2   no queue exceeds its bound, no request waits beyond its deadline
//	3   no GPU and no host memory is allocated twice; no team exceeds its maximum;
//	    no team's guaranteed GPUs are evicted for a borrower
//	4   one start at a time from zero, and no function is started over and over
//	5   only idle replicas are evicted or scaled down
//	6   waiting requests are served if there is room, or get the reason why not
//	10  a replica that is gone leaves the routes within seconds
//	11  the idle time counts from the last request's end, and from READY
//	12  a function with no replica is still known
//
// Violations that a fault explains are ignored while it lasts: a failed request on a
// replica that a fault broke, or two starts while a replaced orchestrator does not yet
// know it.
//
// # Failures
//
// A failure prints its seed. Shrink reduces the experiment while it still fails; the result
// goes into testdata, where TestExperiments replays it. mutants_test.go shows that the checks
// can fail: it puts a list of small bugs into the sources of placement, orchestrator and
// activator, one at a time, and some seed must find each.

package simulate_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seeds       = flag.Int("seeds", 40, "how many seeds TestSeeds runs")
	first       = flag.Uint64("first", 1, "the first of them")
	experiment  = flag.String("experiment", "", "the file or the seed of the experiment whose events TestTrace prints")
	tries       = flag.Int("tries", 400, "how often a failing experiment is run to shrink it")
	keepFailing = flag.Bool("keep", false, "write the shrunk form of a failing experiment to testdata")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeeds runs experiments drawn from seeds. A failing one prints its seed and the shrunk
// experiment; in testdata (-keep writes it) TestExperiments replays it from then on.
func TestSeeds(t *testing.T) {
	began := time.Now()
	var mu sync.Mutex
	states := map[uint64]struct{}{}
	var runs, steps, requests, answered, failed atomic.Int64
	next := make(chan uint64)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range next {
				r, err := Run(t.Context(), NewExperiment(seed))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					failed.Add(1)
					continue
				}
				runs.Add(1)
				steps.Add(int64(r.Steps))
				requests.Add(int64(r.Requests))
				answered.Add(int64(r.Answered))
				mu.Lock()
				for s := range r.States {
					states[s] = struct{}{}
				}
				mu.Unlock()
				if r.Broken != nil && failed.Add(1) <= 3 {
					t.Errorf("%v\nsmall:\n%s", r.Broken, shrunk(t, seed))
				}
			}
		})
	}
	for i := range *seeds {
		if failed.Load() > 0 && t.Context().Err() == nil && i%64 == 63 {
			break
		}
		next <- *first + uint64(i)
	}
	close(next)
	wg.Wait()
	t.Logf("%d seeds run in %v: %d events checked, %d distinct states, %d requests of which %d were answered; %d seeds failed",
		runs.Load(), time.Since(began).Round(time.Millisecond), steps.Load(), len(states), requests.Load(), answered.Load(), failed.Load())
	if len(states) < 20*int(runs.Load()) && *seeds >= 40 {
		t.Errorf("only %d states in %d seeds: the experiments cover too few states", len(states), runs.Load())
	}
}

// shrunk returns a failing experiment, shrunk, as JSON.
func shrunk(t *testing.T, seed uint64) string {
	s := Shrink(NewExperiment(seed), *tries, func(s Experiment) bool {
		r, err := Run(t.Context(), s)
		return err == nil && r.Broken != nil
	})
	r, _ := Run(t.Context(), s)
	if r.Broken != nil {
		s.Note = r.Broken.Error()
	}
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *keepFailing {
		os.MkdirAll("testdata", 0o755)
		os.WriteFile(filepath.Join("testdata", fmt.Sprintf("seed-%d.json", seed)), append(b, '\n'), 0o644)
	}
	return string(b)
}

// TestExperiments replays the experiments that failed once.
func TestExperiments(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s Experiment
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if r.Broken != nil {
				t.Error(r.Broken)
			}
		})
	}
}

// TestRunsAreDeterministic: an experiment gives the same run every time.
func TestRunsAreDeterministic(t *testing.T) {
	for seed := range uint64(5) {
		runOnce := func() string {
			r, err := Run(context.Background(), NewExperiment(1000+seed))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(r.Broken, r.At, r.Steps, r.Requests, r.Answered, len(r.States))
		}
		if a, b := runOnce(), runOnce(); a != b {
			t.Errorf("seed %d: %s, then %s", 1000+seed, a, b)
		}
	}
}

// TestShrink: faults that do not matter are removed.
func TestShrink(t *testing.T) {
	s := NewExperiment(7)
	want := s.Faults[len(s.Faults)/2]
	got := Shrink(s, 1000, func(s Experiment) bool {
		for _, d := range s.Faults {
			if d.At == want.At && d.Do == want.Do {
				return true
			}
		}
		return false
	})
	if len(got.Faults) != 1 || len(got.Models) != 1 || len(got.Hosts) != 1 || len(got.Teams) != 0 {
		t.Errorf("%d faults, %d models, %d hosts, %d teams are left", len(got.Faults), len(got.Models), len(got.Hosts), len(got.Teams))
	}
}

// TestTrace prints the events of one experiment: -experiment testdata/x.json or -experiment 17.
func TestTrace(t *testing.T) {
	if *experiment == "" {
		return // no experiment was named
	}
	var s Experiment
	if seed, err := strconv.ParseUint(*experiment, 10, 64); err == nil {
		s = NewExperiment(seed)
	} else if b, err := os.ReadFile(*experiment); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	r, err := RunTraced(t.Context(), s, func(at time.Duration, text string) { t.Logf("%12v %s", at.Round(time.Millisecond), text) })
	t.Log(r.Broken, err, r.Steps)
}
