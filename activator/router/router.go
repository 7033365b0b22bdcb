// Package router decides which target answers a request to a Router (such as model: auto), by its
// rules, the request's features and the targets' given states, and replays decisions; it sends
// nothing. It is pure: it reads no clock, does no I/O and calls no model, so that a recorded
// decision can be made again, and a simulation can run the code that serves.
package router

import (
	"cmp"
	"fmt"

	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/functions"
)

// DefaultThreshold is the confidence below which a text has no intent, where the Router
// sets none.
const DefaultThreshold = 0.75

// Router is a Router that is ready to decide. It is immutable and safe for concurrent
// use.
type Router struct {
	name      string
	spec      functions.RouterSpec
	intents   *intents.Classifier // nil: the Router has none
	threshold float64
}

// Compile prepares a Router that has passed validation and fits its intents from their
// examples; 150 intents of 100 examples take seconds, so Compile is not for the path of
// a request.
func Compile(r *functions.Router) (*Router, error) {
	c := &Router{name: r.FullName().String(), spec: r.Spec, threshold: cmp.Or(r.Spec.Intents.Threshold, DefaultThreshold)}
	c.spec.Cold = cmp.Or(c.spec.Cold, functions.ColdWait)
	if n := len(c.spec.Rules); n == 0 || !isEmpty(c.spec.Rules[n-1].When) {
		return nil, fmt.Errorf("%s: the last rule must have no condition (when)", c.name)
	}
	if len(r.Spec.Intents.List) == 0 {
		return c, nil
	}
	var examples []intents.Example
	for _, in := range r.Spec.Intents.List {
		if len(in.Examples)+len(in.Loaded) == 0 {
			return nil, fmt.Errorf("%s: the intent %s has no examples", c.name, in.Name)
		}
		for _, list := range [][]string{in.Examples, in.Loaded} {
			for _, text := range list {
				examples = append(examples, intents.Example{Text: text, Intent: in.Name})
			}
		}
	}
	c.intents = intents.Fit(examples)
	return c, nil
}

func isEmpty(w functions.When) bool {
	return w.StructuredOutput == nil && w.Code == nil && w.Safety == nil && w.Tools == nil && w.Images == nil &&
		w.RepeatedPrefix == nil && w.Language == "" && w.TokensBelow == nil && w.TokensAbove == nil &&
		w.ComplexityAbove == nil && w.ComplexityBelow == nil && w.Intent == "" && len(w.Header) == 0
}
