// Package snapshot defines the immutable state of a function that the platform publishes (model,
// replicas, why none can start) and a table of them, read without a lock; it is no image of a
// process. A change replaces a Snapshot whole.
//
// The table has one writer at a time (Put and Remove take its mutex) and any
// number of readers. Adding or removing names copies the index; a new snapshot
// of a known function is one pointer store, so progress ticks cost nothing.
//
// An Entry is stable for as long as its function exists. The data path keeps its
// own state per function (queue, metrics) in the entry, as a value of its type.
package snapshot
