package compose

import (
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxPlanBytes bounds the coordinator's JSON.
const maxPlanBytes = 64 << 10

// decodeStrict decodes the coordinator's JSON: one value, known and distinct keys only,
// nothing behind it. A code fence around all of it is removed.
func decodeStrict(text string, into any) error {
	text = unwrapFence(visible(text))
	if len(text) > maxPlanBytes {
		return fmt.Errorf("the JSON has %d bytes, at most %d are allowed", len(text), maxPlanBytes)
	}
	if text == "" {
		return errors.New("the reply is empty")
	}
	if err := json.Unmarshal([]byte(text), into, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("no valid JSON of the schema: %s", clipLine(err.Error(), 300))
	}
	return nil
}

// clipLine returns at most n bytes of s, with control characters as spaces.
func clipLine(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// jsonList returns names as a JSON array.
func jsonList(names []string) string {
	raw, _ := json.Marshal(names, jsontext.AllowInvalidUTF8(true)) // strings have no other error
	return string(raw)
}

// askPlan asks the coordinator for JSON and decodes it. An invalid reply is quoted back to
// it once, with the error, if the budget leaves a call for that and one for the plan. If no
// reply can be used it returns without an error, and Result.PlanError says why: the caller
// then shares out the whole request.
func (r *run) askPlan(ctx context.Context, text string, schema jsontext.Value, next []string, decode func(string) error) error {
	q := Call{Member: r.plan.Coordinator, Role: RoleCoordinator, Messages: r.messages(text), JSON: schema}
	o := r.one(ctx, q, next)
	if !o.answered() {
		return r.coordinatorError(ctx, o, "no plan")
	}
	first := decode(o.text)
	if first == nil {
		return nil
	}
	if r.callsLeft(2) < 2 {
		r.result.PlanError = fmt.Sprintf("the coordinator's plan was invalid, and budget.calls leaves no call to repair it: %v", first)
		return nil
	}
	repair := r.quoteIn(promptRepair, []quotation{{"What is wrong with it", first.Error()}, {"Your reply", o.text}})
	q.Messages = r.messages(text + "\n\n" + repair)
	if o = r.one(ctx, q, next); !o.answered() {
		return r.coordinatorError(ctx, o, fmt.Sprintf("its plan was invalid (%v) and not repaired", first))
	}
	if second := decode(o.text); second != nil {
		r.result.PlanError = fmt.Sprintf("the coordinator's plan was invalid twice: %v", second)
	}
	return nil
}

// reportPlan reports the steps of a plan, or of the one in its place.
func (r *run) reportPlan(steps []Step) {
	e := Event{Kind: EventPlan, Round: r.round, Steps: steps}
	if r.result.PlanError != "" {
		e.Err = errors.New(r.result.PlanError)
	}
	r.on(e)
}

// distinct returns list without repeats.
func distinct(list []string) (kept []string) {
	for _, s := range list {
		if !slices.Contains(kept, s) {
			kept = append(kept, s)
		}
	}
	return kept
}
