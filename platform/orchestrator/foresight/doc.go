// Package foresight applies package forecast in the control loop: its Forecaster records uses of
// functions (deployed models), sets what the planner reads of each (next use, how long to keep it
// idle), and makes leases for starts ahead of demand, forecast or asked for, within budgets of GPU
// time.
//
// The control loop calls a Forecaster for every function that changed, and once a tick. The
// Forecaster sets what the planner reads of a function: how often it is used, its next use,
// how long to keep it idle, and until when it is held ready. A forecast or a hint of a user
// becomes a lease: a start that is placed last, is evicted for any demand, and ends with the
// lease. Leases draw on a budget of GPU time, and their results are counted.
//
// The history and the measured start times are kept in a file. The package has no lock of
// its own: the loop's is held in its calls.
package foresight
