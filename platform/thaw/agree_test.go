package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/bench/schedule"
)

// TestSimulatorAgrees: the simulator is right about a live platform: the same
// load on two agents with real engines, and simulated with each start as long as
// that very start was there, has the same starts in the same order, for which the
// same models make way. How many requests a start finds waiting goes with the pace
// of the machine, which the bench compares.
func TestSimulatorAgrees(t *testing.T) {
	dir, err := os.MkdirTemp("", "thaw") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	a, err := schedule.Agree(t.Context(), schedule.AgreeOptions{Exe: os.Args[0], Dir: dir, Source: tinyDir(t), Requests: 30, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", a)
	if len(a.Live) == 0 || !slices.Equal(a.Live, a.Sim) {
		t.Errorf("live:\n%s\nsimulated:\n%s\ncold requests:\n%s", strings.Join(a.Live, "\n"), strings.Join(a.Sim, "\n"), strings.Join(a.Waits, "\n"))
	}
}
