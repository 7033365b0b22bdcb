// Package schedule measures scheduling, mostly by simulated days: cold requests under each policy,
// fairness among teams, time of a decision and a plan; and checks the simulator against a live
// platform. It measures the share of cold requests on a real day under each policy beside a policy
// that knows the future, a fixed idle time against a learned one, the time of a decision and of a
// full plan, the effect of one team's queue on another, the simulation of a day of ten million
// requests, and whether the simulator, on which all of this rests, agrees with a live platform.
//
// Every comparison is measured in the same run.
package schedule
