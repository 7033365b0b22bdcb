package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/bench/thaw-bench/router"
	"github.com/thaw-dev/thaw/bench/thaw-bench/schedule"
	"github.com/thaw-dev/thaw/bench/thaw-bench/socket"
)

// TestPlatform runs the parts of benchmarks that run the platform, with a thaw that it builds.
func TestPlatform(t *testing.T) {
	thaw := filepath.Join(t.TempDir(), "thaw")
	build := exec.Command("go", "build", "-o", thaw, "./platform/thaw")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(t *testing.T, self, thaw, dir string){"schedule": agrees, "router": routes, "socket": sockets} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "thaw") // short, for unix sockets
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			f(t, self, thaw, dir)
		})
	}
}

// agrees: the simulator predicts a live platform. The same load runs on two agents with real
// engines, and in the simulator with the measured duration of each start. Both must have the
// same starts in the same order, with the same evictions. The number of requests that wait
// for a start depends on the machine's speed and is not compared.
func agrees(t *testing.T, _, thaw, dir string) {
	tiny, err := filepath.Abs(filepath.Join("..", "..", "functions", "shipped", "tiny"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := schedule.Agree(t.Context(), schedule.AgreeOptions{Exe: thaw, Dir: dir, Source: tiny, Requests: 30, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", a)
	if len(a.Live) == 0 || !slices.Equal(a.Live, a.Sim) {
		t.Errorf("live:\n%s\nsimulated:\n%s\ncold requests:\n%s", strings.Join(a.Live, "\n"), strings.Join(a.Sim, "\n"),
			strings.Join(a.Waits, "\n"))
	}
}

// routes: every answer is checked, the model that was cold is ready, and the next request is
// answered by it.
func routes(t *testing.T, self, thaw, dir string) {
	r, err := router.Run(t.Context(), router.Options{
		Parts: map[string]bool{"requests": true, "hedge": true}, Progress: func(string) {},
		Thaw: thaw, Engine: []string{self, "engine"}, Dir: dir, RequestRounds: 1, Requests: 20, Hedges: 2,
	}, router.Result{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Requests) != 5 || r.Hedge == nil || r.Hedge.First.N != 2 || r.Hedge.Usual.N != 2 || len(r.Goals) != 6 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Requests {
		if c.Wrong != 0 || len(c.Micros) != 1 {
			t.Errorf("%+v", c)
		}
	}
}

// sockets: every answer is checked, each socket closed by 1001, and the cold model READY at
// the submit.
func sockets(t *testing.T, self, thaw, dir string) {
	r, err := socket.Run(t.Context(), socket.Options{
		Parts: map[string]bool{"idle": true, "typing": true, "submit": true, "cold": true}, Progress: func(string) {},
		Thaw: thaw, Engine: []string{self, "engine"}, Echo: []string{self, "echo"}, Dir: dir,
		Intents: 10, Idle: []int{20}, Rounds: 1, Words: 100, Submits: 10, Starts: 1, Load: 50 * time.Millisecond, Typed: 500 * time.Millisecond,
	}, socket.Result{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Idle) != 2 || r.Idle[0].GoneAway != 20 || len(r.Typing) != 2 || r.Typing[0].Words < 100 || r.Typing[1].Words < 100 {
		t.Errorf("%+v %+v", r.Idle, r.Typing)
	}
	if len(r.Submits) != 3 || r.Submits[0].First.N != 10 || r.Cold == nil || r.Cold.Ahead.N != 1 || r.Cold.Plain.N != 1 || len(r.Goals) != 4 {
		t.Errorf("%+v %+v %+v", r.Submits, r.Cold, r.Goals)
	}
}
