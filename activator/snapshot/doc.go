// Package snapshot holds what the platform has told the data path: one immutable
// picture per function, replaced whole on every change (push, never poll), and
// a table of them that a request reads without a lock.
//
// The table has one writer at a time (Put and Drop take its mutex) and any
// number of readers. Adding or removing names copies the index; a new picture
// of a known function is one pointer store, so progress ticks cost nothing.
//
// An Entry is stable for as long as its function exists. What the data path
// keeps per function (gate, counters, affinity) hangs on it as a value of the
// caller's type, because this room knows nothing of the rooms beside it.
package snapshot
