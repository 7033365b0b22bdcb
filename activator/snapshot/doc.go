// Package snapshot holds what the platform has published to the data path: one
// immutable Snapshot per function, replaced whole on every change (push, never
// poll), and a Table of them that requests read without a lock.
//
// The table has one writer at a time (Put and Remove take its mutex) and any
// number of readers. Adding or removing names copies the index; a new snapshot
// of a known function is one pointer store, so progress ticks cost nothing.
//
// An Entry is stable for as long as its function exists. The data path keeps its
// own state per function (queue, metrics) in the entry, as a value of its type.
package snapshot
