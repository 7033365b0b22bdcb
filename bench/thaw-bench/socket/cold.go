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
	Sure  report.Summary `json:"start_begun_after_seconds"` // of typing: the intent was sure
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
	var sure, ahead, warm, plain []float64
	for i := range 2 * o.Starts {
		typed := i < o.Starts
		start, err := s.coldStart(ctx, i, intents[i].early, o.Typed, typed)
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, s.process.Tail())
		}
		first := start.first
		if !typed {
			plain = append(plain, first)
			o.Progress(fmt.Sprintf("cold, not typed: first token after %s", report.Millis(first)))
			continue
		}
		sure, ahead, warm = append(sure, start.sure), append(ahead, first), append(warm, start.again...)
		if start.ready {
			x.Hits++
		}
		o.Progress(fmt.Sprintf("cold, typed: begun after %s, first token after %s", report.Millis(start.sure), report.Millis(first)))
	}
	x.Sure = report.Summarize(sure)
	x.Ahead, x.Warm, x.Plain = report.Summarize(ahead), report.Summarize(warm), report.Summarize(plain)
	return x, nil
}

// coldStart is one start of a cold model; times are in seconds.
type coldStart struct {
	sure  float64   // of typing, until the start began
	first float64   // token after the submit
	ready bool      // at the submit
	again []float64 // first tokens of further submits
}

// coldStart types a text within a time, or not at all, and submits it.
func (s *server) coldStart(ctx context.Context, id int, text string, within time.Duration, typed bool) (x coldStart, err error) {
	ctx, cancel := context.WithTimeout(ctx, platformStart)
	defer cancel()
	c, err := s.dial(ctx, id)
	if err != nil {
		return x, err
	}
	defer c.ws.CloseNow()
	began := time.Now()
	if typed {
		words := prefixes(text)
		tick := time.NewTicker(within / time.Duration(len(words)+1))
		defer tick.Stop()
		for _, w := range append(words, "") { // the last word has its time, too
			select {
			case <-tick.C:
			case <-ctx.Done():
				return x, ctx.Err()
			}
			if w == "" {
				break
			}
			if err = c.send(ctx, w); err == nil {
				err = c.pingSeeing(ctx, func(f frame) {
					if x.sure == 0 && f.Prepares != "" {
						x.sure = time.Since(began).Seconds()
					}
				})
			}
			if err != nil {
				return x, err
			}
		}
	}
	began = time.Now()
	if err := c.send(ctx, `{"type":"submit","text":"`+text+`"}`); err != nil {
		return x, err
	}
	f, err := c.until(ctx, "generation_start")
	if err == nil && f.Model != coldModel(id).Name {
		err = fmt.Errorf("the model is %s, want %s", f.Model, coldModel(id).Name)
	}
	if err == nil {
		_, err = c.until(ctx, "token")
	}
	x.first, x.ready = time.Since(began).Seconds(), !f.Cold
	if err == nil {
		_, err = c.until(ctx, "generation_complete")
	}
	for range warmSubmits {
		var took float64
		if err == nil {
			took, err = c.generate(ctx, "__submit__")
			x.again = append(x.again, took)
		}
	}
	return x, err
}
