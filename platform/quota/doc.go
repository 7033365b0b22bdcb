// Package quota counts the resources that each team holds and has used, and reports
// when a team has used up its GPU-seconds of the day.
//
// An Account is charged whenever the holdings of a team's functions change. It counts
// GPU-seconds, since midnight UTC and in total, and a moving average of use by which
// package placement orders teams. A Ledger keeps the accounts across restarts.
//
// The package reads no clock: now is a placement.Instant, wall the time of day.
package quota
