package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gpuModel returns a model file of the fake engine that needs one GPU.
func gpuModel(name, flags string) string {
	return fakeModel(name, flags, "resources: {gpus: 1, gpuMemory: 1Gi, memory: 64Mi}\nscale: {idle: 5m}\n")
}

// twoGPUs are the flags of a server with two GPUs of 1 GiB.
var twoGPUs = []string{"--gpus", "2", "--gpu-memory", "1Gi", "--memory", "1Gi", "--warm", "off"}

// stops lists the events of replicas that were stopped, as FUNCTION REASON FOR.
func (p *platform) stops() (out []string) {
	for _, e := range p.items("/api/v1/events") {
		if e["kind"] == "stop" {
			out = append(out, fmt.Sprint(e["function"], " ", e["reason"], " ", e["for"]))
		}
	}
	return out
}

// TestGuarantee: a team borrows GPUs that are free. What another team is guaranteed is given
// back when that team asks, by a drain that ends no answer, and is not taken again.
func TestGuarantee(t *testing.T) {
	dir := t.TempDir()
	hold := func(name string) string { return filepath.Join(dir, name) }
	files := map[string]string{
		"red.yaml": "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: red}\nspec: {gpus: {guaranteed: 1}}\n",
		"r1.yaml":  gpuModel("red/r1", ""),
	}
	for _, name := range []string{"b1", "b2"} {
		files[name+".yaml"] = gpuModel("blue/"+name, "--holds "+hold(name))
		if err := os.WriteFile(hold(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	p := spawn(t, files, twoGPUs...)
	ask := func(model string) <-chan reply {
		answer := make(chan reply, 1)
		go func() { answer <- p.chat(model, "") }()
		return answer
	}
	streams := map[string]io.Reader{}
	for _, name := range []string{"b1", "b2"} {
		res, rest := p.open(t.Context(), "blue/"+name, 1)
		defer res.Body.Close()
		streams[name] = rest
	}
	if a, b := p.state("blue/b1"), p.state("blue/b2"); a != "READY" || b != "READY" {
		t.Fatalf("blue has %s and %s: it borrows nothing", a, b)
	}

	red := ask("red/r1")
	p.eventually("a replica of blue is drained for red", func() bool { return len(p.stops()) > 0 })
	victim, other := "b1", "b2"
	switch got := p.stops()[0]; got {
	case "blue/b1 share red/r1":
	case "blue/b2 share red/r1":
		victim, other = other, victim
	default:
		t.Fatalf("stopped: %s", got)
	}
	select {
	case r := <-red:
		t.Fatalf("answered before the other team's answer has ended: %d %s", r.status, r.body)
	default:
	}
	os.Remove(hold(victim))
	if b, err := io.ReadAll(streams[victim]); err != nil || len(b) == 0 {
		t.Errorf("the answer of the drained replica ended with %q, %v", b, err)
	}
	if r := <-red; r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}

	// blue asks for its model again. red's replica is idle, and stays.
	blue := ask("blue/" + victim)
	p.eventually("the request of blue waits", func() bool {
		for _, f := range p.items("/api/v1/functions") {
			if f["name"] == "blue/"+victim {
				n, _ := f["queued"].(float64)
				return n == 1
			}
		}
		return false
	})
	held := time.Now()
	p.eventually("red keeps its GPU while blue waits", func() bool {
		if s := p.state("red/r1"); s != "READY" {
			t.Fatalf("red's replica is %s: %v", s, p.stops())
		}
		return time.Since(held) > 2*time.Second // past the residency of a second
	})
	select {
	case r := <-blue:
		t.Fatalf("blue got a GPU: %d %s", r.status, r.body)
	default:
	}
	os.Remove(hold(other))
	io.Copy(io.Discard, streams[other])
	if r := <-blue; r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if s := p.state("red/r1"); s != "READY" || len(p.stops()) != 2 {
		t.Errorf("stopped: %q, and red's replica is %s", p.stops(), s)
	}
}

// TestNoTeamStarves: a team whose models are never idle and have queues delays another team
// by the answers in flight and one start.
func TestNoTeamStarves(t *testing.T) {
	p := start(t, map[string]string{
		"b1.yaml": gpuModel("blue/b1", "--takes 200ms"),
		"b2.yaml": gpuModel("blue/b2", "--takes 200ms"),
		"r1.yaml": gpuModel("red/r1", ""),
	}, twoGPUs...)
	var all sync.WaitGroup
	defer all.Wait()
	var over atomic.Bool
	defer over.Store(true)
	var answers [2]atomic.Int64
	for i := range 24 { // each replica takes 8 at once
		all.Go(func() {
			for !over.Load() {
				model := fmt.Sprintf("blue/b%d", 1+i%2)
				if r := p.chat(model, ""); r.status != 200 {
					t.Errorf("%s: %d %s", model, r.status, r.body)
					return
				}
				answers[i%2].Add(1)
			}
		})
	}
	p.eventually("both models of blue serve", func() bool { return answers[0].Load() > 24 && answers[1].Load() > 24 })
	if r := p.chat("red/r1", ""); r.status != 200 {
		t.Errorf("red got %d: %s", r.status, r.body)
	}
	before := answers[0].Load() + answers[1].Load()
	p.eventually("blue goes on with the rest", func() bool { return answers[0].Load()+answers[1].Load() > before+24 })
	// One replica of blue made way, and blue started none before red did.
	var order []string
	for _, e := range p.items("/api/v1/events") {
		name := fmt.Sprint(e["function"])
		switch kind := fmt.Sprint(e["kind"]); {
		case kind == "ready":
			order = append(order, name)
		case kind == "stop" && strings.HasPrefix(name, "blue/"):
			order = append(order, fmt.Sprint("stop ", e["reason"], " ", e["for"]))
		}
	}
	if len(order) < 4 || !slices.Equal(order[2:4], []string{"stop share red/r1", "red/r1"}) {
		t.Errorf("%q", order)
	}
}
