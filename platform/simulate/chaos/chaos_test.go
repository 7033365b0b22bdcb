package chaos

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
	seeds = flag.Int("seeds", 40, "how many seeds TestSeeds plays")
	first = flag.Uint64("first", 1, "the first of them")
	scene = flag.String("scene", "", "a scene's file, or a seed, whose story TestTell tells")
	tries = flag.Int("tries", 400, "how often a failing scene is played to make it small")
	keep  = flag.Bool("keep", false, "write the small form of a failing scene to testdata")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeeds plays scenes drawn from seeds. A failing one prints its seed and the shrunk
// scene; in testdata (-keep writes it) TestScenes replays it from then on.
func TestSeeds(t *testing.T) {
	began := time.Now()
	var mu sync.Mutex
	states := map[uint64]struct{}{}
	var played, steps, requests, answered, failed atomic.Int64
	next := make(chan uint64)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range next {
				r, err := Play(t.Context(), Make(seed))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					failed.Add(1)
					continue
				}
				played.Add(1)
				steps.Add(int64(r.Steps))
				requests.Add(int64(r.Requests))
				answered.Add(int64(r.Answered))
				mu.Lock()
				for s := range r.States {
					states[s] = struct{}{}
				}
				mu.Unlock()
				if r.Broken != nil && failed.Add(1) <= 3 {
					t.Errorf("%v\nsmall:\n%s", r.Broken, small(t, seed))
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
	t.Logf("%d seeds played in %v: %d events checked, %d distinct states, %d requests of which %d were answered; %d seeds failed",
		played.Load(), time.Since(began).Round(time.Millisecond), steps.Load(), len(states), requests.Load(), answered.Load(), failed.Load())
	if len(states) < 20*int(played.Load()) && *seeds >= 40 {
		t.Errorf("only %d states in %d seeds: the scenes have become dull", len(states), played.Load())
	}
}

// small returns a failing scene, shrunk, as JSON.
func small(t *testing.T, seed uint64) string {
	s := Shrink(Make(seed), *tries, func(s Scene) bool {
		r, err := Play(t.Context(), s)
		return err == nil && r.Broken != nil
	})
	r, _ := Play(t.Context(), s)
	if r.Broken != nil {
		s.Note = r.Broken.Error()
	}
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if *keep {
		os.MkdirAll("testdata", 0o755)
		os.WriteFile(filepath.Join("testdata", fmt.Sprintf("seed-%d.json", seed)), append(b, '\n'), 0o644)
	}
	return string(b)
}

// TestScenes replays the scenes that failed once.
func TestScenes(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s Scene
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			r, err := Play(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if r.Broken != nil {
				t.Error(r.Broken)
			}
		})
	}
}

// TestSame: a scene gives the same run every time.
func TestSame(t *testing.T) {
	for seed := range uint64(5) {
		play := func() string {
			r, err := Play(context.Background(), Make(1000+seed))
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(r.Broken, r.At, r.Steps, r.Requests, r.Answered, len(r.States))
		}
		if a, b := play(), play(); a != b {
			t.Errorf("seed %d: %s, then %s", 1000+seed, a, b)
		}
	}
}

// TestShrink: faults that do not matter are removed.
func TestShrink(t *testing.T) {
	s := Make(7)
	want := s.Faults[len(s.Faults)/2]
	got := Shrink(s, 1000, func(s Scene) bool {
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

// TestTell prints the events of one scene: -scene testdata/x.json or -scene 17.
func TestTell(t *testing.T) {
	if *scene == "" {
		return // no scene was named
	}
	var s Scene
	if seed, err := strconv.ParseUint(*scene, 10, 64); err == nil {
		s = Make(seed)
	} else if b, err := os.ReadFile(*scene); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	r, err := Tell(t.Context(), s, func(at time.Duration, what string) { t.Logf("%12v %s", at.Round(time.Millisecond), what) })
	t.Log(r.Broken, err, r.Steps)
}
