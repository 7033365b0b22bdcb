// Package chaos injects faults into the simulator and checks the design's invariants after
// every event. A seed determines everything.
//
// # An experiment
//
// An Experiment is plain data: hosts, models, teams, and a list of faults with their times. A
// fault is a burst of requests, or a failure: a node that dies or is partitioned, a slow
// disk, starts that fail, engines that crash, hang or run out of memory, unhealthy GPUs,
// messages that are delayed, doubled or lost, clocks that jump, a catalogue that is
// empty for a while, an orchestrator that stalls, is replaced in the middle of its work,
// or is killed. NewExperiment draws one from a seed. Every experiment ends with a part without faults: all
// faults are undone, and every model gets one more request and must answer it.
//
// # Invariants
//
// Run runs an experiment and checks the invariants of the design (section 8, with its
// numbers):
//
//	1   every request ends exactly once, and fails only where a fault caused it
//	2   no queue exceeds its bound, no request waits beyond its deadline
//	3   no GPU and no host memory is allocated twice; no team exceeds its maximum;
//	    no team's guaranteed GPUs are evicted for a borrower
//	4   one start at a time from zero, and no function is started over and over
//	5   only idle replicas are evicted or scaled down
//	6   waiting requests are served if there is room, or get the reason why not
//	10  a replica that is gone leaves the routes within seconds
//	11  the idle time counts from the last request's end, and from READY
//	12  a function with no replica is still known
//
// Violations that a fault explains are ignored while it lasts: a failed request on a
// replica that a fault broke, or two starts while a replaced orchestrator does not yet
// know it.
//
// # Failures
//
// A failure prints its seed. Shrink reduces the experiment while it still fails; the result
// goes into testdata, where TestExperiments replays it. mutants_test.go shows that the checks
// can fail: it puts a list of small bugs into the sources of placement, orchestrator and
// activator, one at a time, and some seed must find each.
package chaos
