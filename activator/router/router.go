// Package router decides which function answers a request to a Router. It is pure: it
// reads no clock, does no I/O and calls no model, so that a recorded decision can be
// made again and the simulator runs the code that serves.
package router

import "github.com/thaw-dev/thaw/functions"

// Input is what a decision depends on beside the Router. Candidate returns the state of
// a target as it is now; its WhyNot is set where it does not exist, the caller may not
// use it, its circuit is open, its class of data forbids it, or budgets and limits have
// no room. Header returns a field of the request's head.
type Input struct {
	Features  functions.RouteFeatures
	Header    func(name string) string
	Candidate func(target string) functions.RouteCandidate
	Cold      functions.ColdPolicy // of the request (thaw-cold); "" is the Router's
	Data      functions.DataClass
}
