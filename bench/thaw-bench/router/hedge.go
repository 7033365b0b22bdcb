package router

import (
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// Hedge is what a Router with "cold: hedge" does while the model it wants is cold, in
// seconds.
type Hedge struct {
	Rounds  int            `json:"rounds"`
	Sibling report.Summary `json:"first_token_of_sibling_seconds"`
	First   report.Summary `json:"first_token_hedged_seconds"`
	Usual   report.Summary `json:"ready_after_request_by_name_seconds"`
	Ready   report.Summary `json:"ready_after_hedged_request_seconds"`
}

// Goals of a hedge: what it may add to the sibling's first token, and to the usual start.
const (
	firstTokenGoal = 5 * time.Millisecond
	startShare     = 1.2
)

// measureHedge sends streams to a warm sibling by name and through Routers that want
// another model, which is cold, and starts these models by name for comparison.
func measureHedge(ctx context.Context, o *Options) (*Hedge, error) {
	p, key, err := o.startPlatform(ctx, o.Hedges)
	if err != nil {
		return nil, err
	}
	defer p.End()
	h := &hedging{p: p, key: key}
	for i := range o.Hedges {
		// In turns, so that none is always the first start of its model.
		steps := []func(context.Context, int) error{h.hedge, h.usual}
		if i%2 == 1 {
			steps[0], steps[1] = steps[1], steps[0]
		}
		for _, step := range steps {
			if err := step(ctx, i); err != nil {
				return nil, fmt.Errorf("round %d: %w: %s", i, err, p.Process.Tail())
			}
			if err := p.Stop(ctx, coldModel(i)); err != nil {
				return nil, err
			}
		}
		if i%10 == 9 {
			o.Progress(fmt.Sprintf("hedge: %d of %d", i+1, o.Hedges))
		}
	}
	return &Hedge{
		Rounds: o.Hedges, Sibling: report.Summarize(h.own), First: report.Summarize(h.first),
		Usual: report.Summarize(h.started), Ready: report.Summarize(h.prewarmed),
	}, nil
}

// hedging gathers the times of all rounds.
type hedging struct {
	p   *served.Platform
	key string

	own, first, started, prewarmed []float64
}

// firstToken sends a stream and returns when, and after how many seconds its first token
// came.
func (h *hedging) firstToken(ctx context.Context, model string) (sent time.Time, seconds float64, err error) {
	k, err := load.Dial(ctx, h.p.Addr)
	if err != nil {
		return sent, 0, err
	}
	defer func() { k.Close() }()
	q := load.Request{Model: model, Key: h.key, Stream: true, Size: systemBytes, Prompt: "hi"}.Bytes()
	sent = time.Now()
	a, err := k.Do(ctx, q)
	if err == nil {
		err = load.Exactly(fake.StreamBody(64))(a)
	}
	return sent, a.First.Sub(sent).Seconds(), err
}

// hedge measures the sibling by name, and then through the Router, for which it answers.
func (h *hedging) hedge(ctx context.Context, i int) error {
	_, own, err := h.firstToken(ctx, siblingModel)
	if err != nil {
		return err
	}
	sent, first, err := h.firstToken(ctx, hedgeRouter(i))
	if err != nil {
		return err
	}
	ready, err := h.ready(ctx, i)
	if err != nil {
		return err
	}
	if posts, err := h.posts(ctx, ready); err != nil || posts != 1 {
		return fmt.Errorf("the model that was cold had %d requests with its warm-up (%v), want 1: the sibling did not answer", posts, err)
	}
	if _, _, err := h.firstToken(ctx, hedgeRouter(i)); err != nil {
		return err
	}
	if posts, err := h.posts(ctx, ready); err != nil || posts != 2 {
		return fmt.Errorf("the prewarmed model had %d requests with its warm-up (%v), want 2: it did not answer the next request", posts, err)
	}
	h.own, h.first = append(h.own, own), append(h.first, first)
	h.prewarmed = append(h.prewarmed, ready.Since.Sub(sent).Seconds())
	return nil
}

// usual measures the start that a request by name causes.
func (h *hedging) usual(ctx context.Context, i int) error {
	sent, _, err := h.firstToken(ctx, coldModel(i).Name)
	if err != nil {
		return err
	}
	ready, err := h.ready(ctx, i)
	h.started = append(h.started, ready.Since.Sub(sent).Seconds())
	return err
}

func (h *hedging) ready(ctx context.Context, i int) (functions.Replica, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s is not ready within a minute", coldModel(i)))
	defer cancel()
	return h.p.Ready(ctx, coldModel(i))
}

func (h *hedging) posts(ctx context.Context, r functions.Replica) (int64, error) {
	var s fake.Stats
	err := h.p.Stats(ctx, r, &s)
	return s.Posts, err
}
