package router

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Decision is the time of one kind of decision, in seconds.
type Decision struct {
	Name        string  `json:"name"`
	P50         float64 `json:"p50_seconds"`
	P99         float64 `json:"p99_seconds"`
	Max         float64 `json:"max_seconds"`
	Allocations float64 `json:"allocations"`
	Goal        float64 `json:"goal_seconds,omitempty"` // of p99
}

const promptBytes = 4 << 10

// The prompts: one that the rules decide by code, one that needs the score.
var (
	codePrompt = strings.Repeat("func check(list []int) error {\n\tfor i := range list {\n\t\tif list[i] < 0 {\n\t\t\treturn "+
		"fmt.Errorf(\"item %d: negative\", i)\n\t\t}\n\t}\n\treturn nil\n}\n\n", 40)
	prosePrompt = strings.Repeat("The engine starts when a request comes in, and it stops after some minutes without one. Why does the "+
		"first answer of the morning take longer, and what would you change? ", 40)
)

// measureDecisions times decisions that the rules make, ones that need the score, and the
// envelope that both need before.
func measureDecisions(ctx context.Context, rounds int) ([]Decision, error) {
	r, err := newRouter()
	if err != nil {
		return nil, err
	}
	var list []Decision
	for _, c := range []struct {
		name, text, rule string
		stage            functions.RouteStage
		goal             float64
	}{
		{"stage one, prose", prosePrompt, "", "", 10e-6},
		{"stage one, code", codePrompt, Code, functions.StageRules, 10e-6},
		{"with the score, prose", prosePrompt, "", functions.StageScore, 100e-6},
	} {
		body, err := chatBody(c.text[:promptBytes])
		if err != nil {
			return nil, err
		}
		env, err := openai.Peek(body)
		if err != nil {
			return nil, err
		}
		rec, err := decide(r, body)
		if err != nil {
			return nil, err
		}
		if c.stage != "" && rec.Stage != c.stage || c.rule != "" && rec.Rule != c.rule {
			return nil, fmt.Errorf("%s: rule %s, stage %s", c.name, rec.Rule, rec.Stage)
		}
		one := func() { decideAmongReady(r, &env, body) }
		if c.stage == "" {
			one = func() { r.Features(&env, body, chatPath) }
		}
		d, err := measureOne(ctx, rounds, one)
		if err != nil {
			return nil, err
		}
		d.Name, d.Goal = c.name, c.goal
		list = append(list, d)
	}
	body, err := chatBody(prosePrompt[:promptBytes])
	if err != nil {
		return nil, err
	}
	d, err := measureOne(ctx, rounds, func() { openai.Peek(body) })
	d.Name = "the envelope, for comparison"
	return append(list, d), err
}

// measureOne times a function after a tenth of the rounds.
func measureOne(ctx context.Context, rounds int, one func()) (Decision, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range rounds/10 + 1 {
		one()
	}
	times := make([]time.Duration, rounds)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range times {
		began := time.Now()
		one()
		times[i] = time.Since(began)
	}
	runtime.ReadMemStats(&after)
	slices.Sort(times)
	return Decision{
		P50: times[rounds/2].Seconds(), P99: times[rounds*99/100].Seconds(), Max: times[rounds-1].Seconds(),
		Allocations: float64(after.Mallocs-before.Mallocs) / float64(rounds),
	}, ctx.Err()
}
