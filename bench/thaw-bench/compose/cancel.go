package compose

import (
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// Cancel is how long calls go on after the client of a debate has left in round two.
type Cancel struct {
	Members int            `json:"members"`
	Ended   report.Summary `json:"all_children_ended_seconds"`
}

const (
	cancelGoal  = time.Second
	cancelWait  = 30 * time.Second
	answerPause = 4 * time.Second // of an engine before its answer
)

// measureCancel leaves debates in their second round and waits until no engine works on a
// request. Plain and streamed requests take turns.
func measureCancel(ctx context.Context, o *Options) (*Cancel, error) {
	documents := []map[string]any{compositionDocument(functions.PatternDebate, members, map[string]any{"quorum": len(members), "rounds": 2})}
	for _, m := range append([]string{coordinator}, members...) {
		documents = append(documents, o.modelDocument(m, 0, 0, time.Hour))
	}
	p, err := o.start(ctx, "cancel", 0, documents...)
	if err != nil {
		return nil, err
	}
	defer p.End()
	for _, m := range members {
		if _, _, err := p.ask(ctx, m, "Hello", false); err != nil {
			return nil, err
		}
	}
	var took []float64
	for i := range o.Cancels {
		d, err := p.cancelOne(ctx, i%2 == 1)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, p.Process.Tail())
		}
		took = append(took, d.Seconds())
	}
	return &Cancel{Members: len(members), Ended: report.Summarize(took)}, nil
}

// cancelOne returns how long after the client has left the last engine is without a request.
func (p *platform) cancelOne(ctx context.Context, stream bool) (time.Duration, error) {
	ctx, stop := context.WithTimeoutCause(ctx, cancelWait, fmt.Errorf("the debate is not where it should be after %v", cancelWait))
	defer stop()
	engines := make([]functions.Replica, len(members))
	before := make([]fake.Stats, len(members))
	for i, m := range members {
		var err error
		if engines[i], err = p.Ready(ctx, fullName(m)); err != nil {
			return 0, err
		}
		if err := p.Stats(ctx, engines[i], &before[i]); err != nil {
			return 0, err
		}
	}
	// until waits until ok holds for the requests of each engine since the start: those that
	// came, that run, and whose client left.
	until := func(ok func(posts, running, left int64) bool) error {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			all := true
			for i, e := range engines {
				var s fake.Stats
				if err := p.Stats(ctx, e, &s); err != nil {
					return err
				}
				all = all && ok(s.Posts-before[i].Posts, s.Running, s.Left-before[i].Left)
			}
			if all {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	k, err := load.Dial(ctx, p.Addr)
	if err != nil {
		return 0, err
	}
	defer func() { k.Close() }()
	if err := k.Send(p.request(panel, "@fake tokens=4 delay="+answerPause.String(), stream)); err != nil {
		return 0, err
	}
	if err := until(func(posts, running, _ int64) bool { return posts == 2 && running == 1 }); err != nil {
		return 0, fmt.Errorf("round two: %w", err)
	}
	k.Close()
	left := time.Now()
	if err := until(func(_, running, _ int64) bool { return running == 0 }); err != nil {
		return 0, fmt.Errorf("the end of all calls: %w", err)
	}
	took := time.Since(left)
	// Each was cut in its second answer, and none was asked again.
	if err := until(func(posts, _, left int64) bool { return posts == 2 && left == 1 }); err != nil {
		return 0, fmt.Errorf("the calls: %w", err)
	}
	return took, nil
}
