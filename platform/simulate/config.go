package simulate

import (
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Request is one arrival of a trace.
type Request = trace.Request

// Config of a run. Fleet and Requests must be set; the zero value of everything
// else is the default named.
type Config struct {
	Fleet     *fleet.Fleet
	Functions []*functions.Model // as a catalogue reads them
	Teams     []*functions.Team
	Requests  trace.Requests

	// Sizes are those of checkpoints. One that is not named is taken for four
	// fifths of the GPU memory that its model takes, or else for 1 GiB.
	Sizes map[functions.Name]functions.Bytes
	// Engines are the times of engines that differ from the fleet's.
	Engines map[functions.Engine]fleet.Engine
	// Times, if not nil, gives the nth start of a function its own times, counted
	// from 1: what a real start took, say. It is told what was drawn for it.
	Times func(name functions.Name, nth int, drawn StartTimes) StartTimes
	// Sources is how many bytes a second all nodes together get from where
	// checkpoints come from; 0: as many as their links take.
	Sources functions.Bytes
	// Input and Output are the tokens of a request whose trace tells none; 512
	// and 128.
	Input, Output int
	// Patience is what every client says of how long it waits.
	Patience admission.ClientTimeouts

	Policy placement.Policy // zero: placement.DefaultPolicy
	Name   string           // of the policy, for the result; "" is the eviction's word
	Seed   uint64
	// Start is the wall clock's time at the trace's begin; Monday, 5 January
	// 2026, 0:00 UTC.
	Start time.Time
	// Until goes on for at least so long after the trace's begin; 0: to the end
	// of the last request.
	Until time.Duration
	// Latency is how long a message between a node and the orchestrator takes;
	// 1 ms. Negative is none.
	Latency time.Duration
	// Gather is how long news wait so that one turn of the loop takes several: so
	// long a turn would take that is under way when they come. 1 ms, and for more
	// than 20 GPUs a twentieth of a millisecond each; negative is none. It makes
	// every cold start about as much longer.
	Gather time.Duration

	// Learn has the loop learn when functions are used, as the platform does; Ahead
	// also has it start what it foresees, within its budget.
	Learn, Ahead bool
	// AheadBudget is the GPU time in an hour that starts ahead may take for a team,
	// and AheadTeams how many times as much for all; 0: the platform's own.
	AheadBudget time.Duration
	AheadTeams  int
	// Next, if not nil, is believed instead about when a function is used next
	// after a time of the trace; 0 never. With placement.Future that is the rule
	// that knows the future.
	Next func(name functions.Name, at time.Duration) time.Duration

	// Begin, if not nil, is called once before anything happens: it sets what is
	// to go wrong (State.At), or drives the run without a trace.
	Begin func(*State)
	// Step, if not nil, is called after every event. An error ends the run.
	Step func(*State) error
	// Event, if not nil, is told what the loop tells of itself.
	Event func(functions.Event)
	// Progress, if not nil, is called now and then.
	Progress func(Progress)
	// Sample is how often Result.Over tells how the GPUs were held; 0 never.
	Sample time.Duration
}

// StartTimes are what one start takes, and the end of what was started.
type StartTimes struct {
	Plan   time.Duration // to list what a source has
	Exec   time.Duration // from the order to the process, with the bytes at hand
	Spawn  time.Duration // from there to a process that wants weights
	Warmup time.Duration // from weights to a first token
	Rise   time.Duration // of a sleeper, beside the copy of its weights
	Exit   time.Duration // from the end's order to the end of the process
}

// Progress of a run.
type Progress struct {
	At       time.Duration // virtual
	Requests int64
	Cold     int64
	Turns    int64 // of the loop
	Events   int64
}

// Start of the virtual wall clock where a run names none: a Monday.
var defaultStart = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

func (c Config) withDefaults() Config {
	if c.Input <= 0 {
		c.Input = 512
	}
	if c.Output <= 0 {
		c.Output = 128
	}
	if c.Policy == (placement.Policy{}) {
		c.Policy = placement.DefaultPolicy
	}
	if c.Name == "" {
		c.Name = c.Policy.Eviction.String()
	}
	if c.Start.IsZero() {
		c.Start = defaultStart
	}
	if c.Latency == 0 {
		c.Latency = time.Millisecond
	}
	if c.Gather == 0 {
		c.Gather = max(time.Millisecond, time.Duration(c.Fleet.GPUs())*50*time.Microsecond)
	}
	c.Latency, c.Gather = max(c.Latency, 0), max(c.Gather, 0)
	return c
}

// size of a model's checkpoint.
func (c *Config) size(m *functions.Model) functions.Bytes {
	if b, ok := c.Sizes[m.FullName()]; ok {
		return b
	}
	r := m.Spec.Resources
	per := r.GPUMemory
	if r.GPUs > 0 && per == 0 {
		for i := range c.Fleet.Nodes {
			if g := c.Fleet.Nodes[i].GPUMemory; c.Fleet.Nodes[i].GPUs > 0 && (per == 0 || g < per) {
				per = g
			}
		}
	}
	if r.GPUs == 0 || per == 0 {
		return 1 << 30
	}
	return functions.Bytes(r.GPUs) * per * 4 / 5
}

// Impossible is a model that no node of the fleet can hold.
type Impossible struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// fits says why no node can hold a model; "" where one can.
func (c *Config) fits(m *functions.Model) string {
	why := "no node has that many GPUs"
	r, size := m.Spec.Resources, c.size(m)
	for i := range c.Fleet.Nodes {
		n := &c.Fleet.Nodes[i]
		switch {
		case n.Count < 1 || n.GPUs < r.GPUs:
		case r.GPUs > 0 && r.GPUMemory > n.GPUMemory:
			why = "no node has GPUs with " + r.GPUMemory.String() + " of memory"
		case r.Memory > n.Memory:
			why = "no node has " + r.Memory.String() + " of host memory"
		case n.Store > 0 && m.Spec.Source != "" && size > n.Store:
			why = "no node's store takes its " + size.String()
		default:
			return ""
		}
	}
	return why
}
