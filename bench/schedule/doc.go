// Package schedule measures the core: `thaw-bench schedule`. How cold a real day
// is under each policy beside a rule that knows the future, what keeping a fixed
// while costs beside what is learned, what a decision and a look at everything
// take, how much one team's queue costs another, a day of ten million requests,
// and whether the simulator, on which all of this rests, tells what a live
// platform would have done.
//
// Whatever a figure is compared with is measured in the same run.
package schedule
