package main

import (
	"os"
	"testing"

	"github.com/thaw-dev/thaw/bench/schedule"
)

// TestSimulatorAgrees: the simulator is right about a live platform: the same
// load on two agents with real engines, and simulated with the phase times that
// were measured there, has the same cold requests.
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
	if a.LiveCold == 0 || a.SimCold != a.LiveCold {
		t.Errorf("%d requests: %d cold live, %d simulated\nlive:\n%v\nsimulated:\n%v", a.Requests, a.LiveCold, a.SimCold, a.Live, a.Sim)
	}
}
