// Package quota counts the GPUs that each team holds and the GPU-seconds it has used, keeps the
// counts across restarts, and reports when a team's GPU-seconds of the day are used up; package
// placement acts on it.
//
// An Account is charged whenever the holdings of a team's functions change. It counts
// GPU-seconds, since midnight UTC and in total, and a moving average of use by which
// package placement orders teams. A Ledger keeps the accounts across restarts.
//
// The package reads no clock: now is a placement.Instant, wall the time of day.
package quota
