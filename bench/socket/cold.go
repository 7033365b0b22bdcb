package socket

import (
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
)

// Cold are times to the first token of a cold model, in seconds.
type Cold struct {
	Load  float64        `json:"engine_loads_seconds"`
	Typed float64        `json:"typed_for_seconds"`
	Ahead report.Summary `json:"first_token_after_typing_seconds"`
	Warm  report.Summary `json:"first_token_when_warm_seconds"` // of the same models and sockets, then
	Plain report.Summary `json:"first_token_without_typing_seconds"`
	Hits  int            `json:"ready_at_the_submit"`
}

const warmSubmits = 20

// measureCold measures models that are asked for after their text was typed, and models
// that are asked for at once. Each start has a model of its own.
func measureCold(ctx context.Context, o *Options) (*Cold, error) {
	intents := makeIntents(2*o.Starts + 1)
	s, err := o.startThaw(ctx, "cold", intents, 2*o.Starts)
	if err != nil {
		return nil, err
	}
	defer s.end()
	x := &Cold{Load: o.Load.Seconds(), Typed: o.Typed.Seconds()}
	var ahead, warm, plain []float64
	for i := range 2 * o.Starts {
		typed := i < o.Starts
		first, again, ready, err := s.coldStart(ctx, i, intents[i].text, o.Typed, typed)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, s.process.Tail())
		}
		if !typed {
			plain = append(plain, first)
			o.Progress(fmt.Sprintf("cold, not typed: first token after %s", report.Millis(first)))
			continue
		}
		ahead, warm = append(ahead, first), append(warm, again...)
		if ready {
			x.Hits++
		}
		o.Progress(fmt.Sprintf("cold, typed: first token after %s", report.Millis(first)))
	}
	x.Ahead, x.Warm, x.Plain = report.Summarize(ahead), report.Summarize(warm), report.Summarize(plain)
	return x, nil
}

// coldStart types a text within a time, or not at all, and submits it. again are the times
// of further submits; ready: the model was so at the first.
func (s *server) coldStart(ctx context.Context, id int, text string, within time.Duration, typed bool) (first float64, again []float64, ready bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, platformStart)
	defer cancel()
	c, err := s.dial(ctx, id)
	if err != nil {
		return 0, nil, false, err
	}
	defer c.ws.CloseNow()
	if typed {
		tick := time.NewTicker(within / time.Duration(len(prefixes(text))))
		defer tick.Stop()
		if _, err := c.typeText(ctx, text, tick.C); err != nil {
			return 0, nil, false, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, nil, false, ctx.Err()
		}
	} else if err := c.ping(ctx); err != nil {
		return 0, nil, false, err
	}
	began := time.Now()
	if err := c.send(ctx, `{"type":"submit","text":"`+text+`"}`); err != nil {
		return 0, nil, false, err
	}
	f, err := c.until(ctx, "generation_start")
	if err == nil && f.Model != coldModel(id).Name {
		err = fmt.Errorf("the model is %s, want %s", f.Model, coldModel(id).Name)
	}
	if err == nil {
		_, err = c.until(ctx, "token")
	}
	first = time.Since(began).Seconds()
	if err == nil {
		_, err = c.until(ctx, "generation_complete")
	}
	for range warmSubmits {
		var took float64
		if err == nil {
			took, err = c.generate(ctx, "__submit__")
			again = append(again, took)
		}
	}
	return first, again, !f.Cold, err
}
