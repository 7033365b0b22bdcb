// Package explain records the last decisions of a planner: what was chosen, for which
// reason, and how the best candidates compare. A decision has a kind: where a function
// was placed, what was evicted for it, why it lost a replica, why it needs more. It also
// has the sentences that say which resource is missing (texts.go).
//
// A Log keeps a fixed number of records and reuses them, so recording allocates next to
// nothing; the text is made when a record is read. A nil Log, and a nil Record, keep
// nothing.
package explain
