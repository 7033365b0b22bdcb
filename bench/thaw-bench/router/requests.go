package router

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// Cost is the CPU time of the platform's process for a kind of request, in microseconds.
type Cost struct {
	Name   string    `json:"name"`
	Micros []float64 `json:"cpu_us_per_request"` // one per round
	Median float64   `json:"median_us"`
	Added  float64   `json:"added_us"` // to the model by name: median of the rounds' differences
	Goal   string    `json:"goal,omitempty"`
	Met    bool      `json:"met"`
	Wrong  int       `json:"answers_wrong"`
}

const (
	requestConns = 16
	systemBytes  = 1 << 10
	addedGoal    = "at most 15 µs more than by name"
	hitGoal      = "under 30 µs"
)

// measureRequests measures whole requests with a prompt of 4 KiB, in turns: by the model's
// name, through Routers, from the cache, and by the HTTP server without a gateway behind it.
func measureRequests(ctx context.Context, o *Options) ([]Cost, error) {
	p, key, err := o.startPlatform(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer p.End()
	front, frontAddr, err := o.startFront(ctx)
	if err != nil {
		return nil, err
	}
	defer front.End(time.Second)
	same := load.Exactly(fake.PlainBody())
	costs := []Cost{{Name: "the model by name"}, {Name: "a Router, by the rules alone"}, {Name: "a Router, with the score"}, {Name: "a Router, exact hit"}, {Name: "the HTTP server alone, for comparison"}}
	models := []string{siblingModel, rulesRouter, scoreRouter, cacheRouter, siblingModel}
	checks := []func(load.Answer) error{same, same, same, sameButID, same}
	for round := range o.RequestRounds + 1 {
		for i := range costs {
			// Rotate the first one: none always has the warm caches.
			i = (i + round) % len(costs)
			c := &costs[i]
			q := load.Request{Model: models[i], Key: key, Size: systemBytes, Prompt: prosePrompt[:promptBytes-systemBytes]}
			addr, pid := p.Addr, p.Process.PID
			if i == len(costs)-1 {
				addr, pid = frontAddr, front.PID
			}
			micros, wrong, err := measureCPU(ctx, addr, pid, q, o.Requests, checks[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w: %s", c.Name, err, p.Process.Tail())
			}
			c.Wrong += wrong
			if round > 0 { // the first one warms up
				c.Micros = append(c.Micros, micros)
			}
		}
		o.Progress(fmt.Sprintf("requests: round %d of %d", round, o.RequestRounds))
	}
	for i := range costs {
		c := &costs[i]
		var added []float64
		for round, micros := range c.Micros {
			added = append(added, micros-costs[0].Micros[round])
		}
		c.Median, c.Added = report.Quantile(c.Micros, 0.5), report.Quantile(added, 0.5)
	}
	for i := 1; i < 3; i++ {
		costs[i].Goal, costs[i].Met = addedGoal, costs[i].Added <= 15
	}
	costs[3].Goal, costs[3].Met = hitGoal, costs[3].Median < 30
	return costs, nil
}

// measureCPU sends n requests and returns the CPU time of a process for each.
func measureCPU(ctx context.Context, addr string, pid int, q load.Request, n int, check func(load.Answer) error) (micros float64, wrong int,
	err error) {
	before, err := process.CPU(pid)
	if err != nil {
		return 0, 0, err
	}
	out, err := load.Closed(ctx, addr, q.Bytes(), requestConns, n, check)
	if err == nil && out.Bad > 0 {
		err = fmt.Errorf("%d of %d answers are wrong, the first: %w", out.Bad, n, out.FirstBad)
	}
	if err != nil {
		return 0, out.Bad, err
	}
	after, err := process.CPU(pid)
	return float64(after-before) / float64(time.Microsecond) / float64(n), out.Bad, err
}

// sameButID checks an answer that may come from the cache: it has an id of its own.
func sameButID(a load.Answer) error {
	behind := func(b []byte) []byte { return b[max(0, bytes.Index(b, []byte(`,"object"`))):] }
	if a.Status != 200 || !bytes.Equal(behind(a.Body), behind(fake.PlainBody())) {
		return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	return nil
}
