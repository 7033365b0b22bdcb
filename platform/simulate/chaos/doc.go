// Package chaos breaks the simulator on purpose and looks whether the promises
// of the design hold: after every event of a run, with everything decided by a
// seed.
//
// # A scene
//
// A Scene is plain data: hosts, models, teams, and a list of faults with their
// times. A deed is a request, or something that goes wrong: a node that dies or
// is cut off, a slow disk, starts that fail, engines that crash, hang or run out
// of memory, GPUs that fall ill, messages that are late, doubled or lost, clocks
// that jump, a catalogue that is empty for a moment, an orchestrator that stands
// still, is replaced in the middle of what it does, or is killed. Make draws one
// from a seed. The last part of every scene is calm: all is mended, and every
// model is asked once more and must answer.
//
// # What is watched
//
// Play runs a scene and checks the invariants of the design (its section 8; the
// numbers are its own):
//
//	1   every request ends exactly once, and fails only where something broke
//	2   no queue is longer than its bound, no request waits beyond its deadline
//	3   no GPU and no host memory is held twice; no team is given more than its
//	    maximum; what a team is guaranteed is not evicted for a borrower
//	4   one start at a time from zero, and no function started over and over
//	5   only idle replicas are evicted or scaled down
//	6   who waits is served where there is room, or told why there is none
//	10  a replica that is gone leaves the routes within seconds
//	11  idle is counted from the last request's end, and from READY
//	12  a function with no replica is still known
//
// What lasts only while something is broken is let pass: a request that fails
// on a replica that a deed has broken, two starts while an orchestrator that was
// replaced does not know it.
//
// # A failure
//
// names its seed. Shrink makes the scene as small as it still fails, and what is
// left goes into testdata, where TestScenes plays it for ever after. That the
// checks can fail at all is shown by mutants_test.go: a list of small bugs, put
// into the sources of schedule, steer and activator one at a time, each of which
// some seed must find.
package chaos
