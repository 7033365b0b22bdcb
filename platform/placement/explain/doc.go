// Package explain keeps the planner's last decisions (what was chosen, why, how the candidates
// compare), makes text of one when it is read, and has the sentences for missing GPUs or memory;
// it decides nothing. A decision has a kind: where a function was placed, what was evicted for it,
// why it lost a replica, why it needs more. The sentences are in texts.go.
//
// A Log keeps a fixed number of records and reuses them, so recording allocates next to
// nothing; the text is made when a record is read. A nil Log, and a nil Record, keep
// nothing.
package explain
