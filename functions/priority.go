package functions

import "slices"

// Priority is a word for the order of a team's requests. "" is unset: normal.
type Priority string

// The priorities.
const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// Priorities from the first to be served to the last.
var Priorities = []Priority{PriorityHigh, PriorityNormal, PriorityLow}

// Above reports whether requests of priority p are served before those of other.
func (p Priority) Above(other Priority) bool {
	return slices.Index(Priorities, p) < slices.Index(Priorities, other)
}
