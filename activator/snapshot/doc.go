// Package snapshot holds the state of functions as the platform last published it (model,
// replicas that take requests, why one cannot start), one immutable Snapshot each, in a
// Table that requests read without a lock. A change replaces a Snapshot whole.
//
// The table has one writer at a time (Put and Remove take its mutex) and any
// number of readers. Adding or removing names copies the index; a new snapshot
// of a known function is one pointer store, so progress ticks cost nothing.
//
// An Entry is stable for as long as its function exists. The data path keeps its
// own state per function (queue, metrics) in the entry, as a value of its type.
package snapshot
