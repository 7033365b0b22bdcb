package main

import (
	"os"
	"testing"

	"github.com/thaw-dev/thaw/bench/router"
)

// TestRouterBench: the parts of the benchmark that run the platform end with every answer
// checked, the model that was cold ready, and the next request answered by it.
func TestRouterBench(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "thaw") // short, for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	r, err := router.Run(t.Context(), router.Options{
		Parts: map[string]bool{"requests": true, "hedge": true}, Progress: func(string) {},
		Thaw: self, Engine: []string{self, "bench-engine"}, Dir: root, RequestRounds: 1, Requests: 20, Hedges: 2,
	}, router.Result{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Requests) != 4 || r.Hedge == nil || r.Hedge.First.N != 2 || r.Hedge.Usual.N != 2 || len(r.Goals) != 6 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Requests {
		if c.Wrong != 0 || len(c.Micros) != 1 {
			t.Errorf("%+v", c)
		}
	}
}
