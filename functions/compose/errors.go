package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrorKind is what made a run fail.
type ErrorKind string

const (
	BadInput          ErrorKind = "input"       // the request is none
	NoQuorum          ErrorKind = "quorum"      // too few answers
	CoordinatorFailed ErrorKind = "coordinator" // no analysis, decomposition or synthesis
	BudgetSpent       ErrorKind = "budget"      // too few answers within the budget; Reason names the part
)

// Error is a failed run.
type Error struct {
	Kind   ErrorKind
	Reason Reason // of BudgetSpent
	Member string // of CoordinatorFailed
	Detail string
	Err    error // the cause, if a call failed
}

func (e *Error) Error() string {
	var b strings.Builder
	switch e.Kind {
	case BadInput:
		b.WriteString("request: ")
	case NoQuorum:
		b.WriteString("too few answers: ")
	case CoordinatorFailed:
		fmt.Fprintf(&b, "coordinator %s failed: ", e.Member)
	case BudgetSpent:
		fmt.Fprintf(&b, "%s is spent: ", e.Reason)
	}
	b.WriteString(e.Detail)
	if e.Err != nil && e.Kind == CoordinatorFailed { // the other details name it
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

var (
	errTime  = errors.New("the composition's time budget is spent")
	errEmpty = errors.New("the answer is empty")

	errNoReturn = errors.New("the call did not return")
)

// givenUp is the cause of the end of a call that is left out.
type givenUp Reason

func (g givenUp) Error() string        { return "given up: " + string(g) }
func (g givenUp) Is(target error) bool { return target == context.Canceled }

// stopped returns the error of a run whose ctx has ended, else nil.
func stopped(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != errTime {
		return fmt.Errorf("composition: %w", cause)
	}
	return &Error{Kind: BudgetSpent, Reason: ReasonTime, Detail: "no answer in time", Err: context.DeadlineExceeded}
}

// tooFew returns the error of a phase with fewer answers than it needs. It is a spent
// budget if the answers that the budget cost would have been enough.
func tooFew(tasks []task, outcomes []outcome, need int) error {
	got, lost := 0, map[Reason]int{}
	var missing []string
	var cause error
	for i, o := range outcomes {
		name := tasks[i].call.Member
		if s := tasks[i].call.Step; s != "" {
			name = s + " (" + name + ")"
		}
		switch {
		case o.answered():
			got++
		case o.left != "":
			lost[o.left]++
			missing = append(missing, fmt.Sprintf("%s: %s", name, o.left))
		default:
			missing = append(missing, name+": "+clipLine(o.err.Error(), 200))
			cause = cmp.Or(cause, o.err)
		}
	}
	e := &Error{Kind: NoQuorum, Detail: fmt.Sprintf("%d of %d needed (%s)", got, need, strings.Join(missing, "; "))}
	budget := 0
	for _, reason := range slices.Sorted(maps.Keys(lost)) {
		if strings.HasPrefix(string(reason), "budget") {
			if budget += lost[reason]; e.Reason == "" {
				e.Reason = reason
			}
		}
	}
	if budget > 0 && got+budget >= need {
		e.Kind = BudgetSpent
	} else {
		e.Reason = ""
	}
	e.Err = cause
	return e
}
