package simulate

import "time"

// faults are what is broken now.
type faults struct {
	breaks  map[string]string // starts of a function fail with this cause
	stalled time.Duration     // the orchestrator stands still until then

	// Late, if not nil, is how much longer a command takes. Heard, if not nil, is
	// after how long, and how often, a heartbeat of a node arrives; none is lost.
	// Unanswered, if not nil, reports whether the answer to a command is lost.
	Late       func() time.Duration
	Heard      func(node string) []time.Duration
	Unanswered func() bool
}

func (f *faults) init() { f.breaks = map[string]string{} }

func (f *faults) dropAnswer() bool { return f.Unanswered != nil && f.Unanswered() }

func (st *State) failing(r *replica) string { return st.breaks[r.f.name.String()] }
