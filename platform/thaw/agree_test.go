package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/bench/schedule"
)

// TestSimulatorAgrees: the simulator predicts a live platform. The same load runs on two
// agents with real engines, and in the simulator with the measured duration of each
// start. Both must have the same starts in the same order, with the same evictions. The
// number of requests that wait for a start depends on the machine's speed and is not
// compared.
func TestSimulatorAgrees(t *testing.T) {
	dir, err := os.MkdirTemp("", "thaw") // short, for unix sockets
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
