package compose

import (
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// Cost is the processor time of the platform's process, in microseconds: one figure per
// round, and their median.
type Cost struct {
	Calls    int       `json:"calls_per_composition"`
	Named    []float64 `json:"by_name_us"`
	Whole    []float64 `json:"composition_us"`
	Call     []float64 `json:"call_us"`  // a Composition's request, over its calls
	Added    []float64 `json:"added_us"` // Call without a request by name
	NamedP50 float64   `json:"by_name_median_us"`
	WholeP50 float64   `json:"composition_median_us"`
	CallP50  float64   `json:"call_median_us"`
	AddedP50 float64   `json:"added_median_us"`
	Plain    int       `json:"compositions_per_round"`
	ByName   int       `json:"requests_by_name_per_round"`
	Goal     float64   `json:"goal_us"`
}

const (
	systemBytes = 1 << 10
	costGoal    = 100.0 // microseconds
	costConns   = 3     // Compositions at once; each asks five members at once
)

// measureCost sends requests to a model by name, and requests to a Composition of five such
// models whose answers do not agree, in turns. All models are up.
func measureCost(ctx context.Context, o *Options) (*Cost, error) {
	documents := []map[string]any{compositionDocument(functions.PatternEnsemble, members, map[string]any{"quorum": len(members)})}
	for _, m := range append([]string{coordinator}, members...) {
		documents = append(documents, o.modelDocument(m, 0, 0, time.Hour))
	}
	p, err := o.start(ctx, "cost", 0, documents...)
	if err != nil {
		return nil, err
	}
	defer p.End()
	c := &Cost{Calls: len(members) + 1, Plain: o.Compositions, ByName: o.Compositions * (len(members) + 1), Goal: costGoal}
	prompt := "Why is the sky blue?"
	if _, _, err := p.ask(ctx, panel, prompt, false); err != nil { // starts all
		return nil, fmt.Errorf("%w: %s", err, p.Process.Tail())
	}
	for round := range o.Rounds + 1 {
		named := func() (float64, error) { return p.measureCPU(ctx, members[round%len(members)], prompt, 15, c.ByName) }
		whole := func() (float64, error) { return p.measureCPU(ctx, panel, prompt, costConns, c.Plain) }
		var a, b float64
		if round%2 == 0 {
			if a, err = named(); err == nil {
				b, err = whole()
			}
		} else if b, err = whole(); err == nil {
			a, err = named()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, p.Process.Tail())
		}
		if round == 0 { // it warms up
			continue
		}
		call := b / float64(c.Calls)
		c.Named, c.Whole, c.Call, c.Added = append(c.Named, a), append(c.Whole, b), append(c.Call, call), append(c.Added, call-a)
	}
	c.NamedP50, c.WholeP50 = report.Quantile(c.Named, 0.5), report.Quantile(c.Whole, 0.5)
	c.CallP50, c.AddedP50 = report.Quantile(c.Call, 0.5), report.Quantile(c.Added, 0.5)
	return c, nil
}

// measureCPU sends n requests and returns the platform's processor time for each.
func (p *platform) measureCPU(ctx context.Context, model, prompt string, conns, n int) (micros float64, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	out, err := load.Closed(ctx, p.Addr, p.request(model, prompt, false), conns, n, checkAnswer)
	if err == nil && out.Bad > 0 {
		err = fmt.Errorf("%s: %d of %d answers are wrong, the first: %w", model, out.Bad, n, out.FirstBad)
	}
	if err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return float64(after-before) / float64(time.Microsecond) / float64(n), err
}
