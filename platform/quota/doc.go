// Package quota counts for each team (Account) the GPUs that it holds and the GPU-seconds it has
// used, keeps the counts across restarts, and reports when the GPU-seconds of the day are used up;
// it stops and refuses nothing: package placement does.
//
// An Account is charged whenever the holdings of a team's functions change. It counts
// GPU-seconds, since midnight UTC and in total, and a moving average of use by which
// package placement orders teams. A Ledger keeps the accounts across restarts.
//
// The package reads no clock: now is a placement.Instant, wall the time of day.
package quota
