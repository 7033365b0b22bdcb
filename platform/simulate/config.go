package simulate

import (
	"cmp"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Request is one arrival of a trace.
type Request = trace.Request

// Config describes a run. Fleet and Requests are required; other zero values mean the
// defaults stated here.
type Config struct {
	Fleet     *fleet.Fleet
	Functions []*functions.Model // the catalogue's models
	Teams     []*functions.Team
	Requests  trace.Requests

	// Sizes are checkpoint sizes. A missing one defaults to four fifths of the model's
	// GPU memory, or 1 GiB if that is unknown.
	Sizes map[functions.Name]functions.Bytes
	// Engines overrides the fleet's engine times per engine.
	Engines map[functions.Engine]fleet.Engine
	// Times, if not nil, sets the times of a function's nth start, counted from 1, for
	// example to those of a real start. drawn holds the simulator's own draw.
	Times func(name functions.Name, nth int, drawn StartTimes) StartTimes
	// Input and Output are the tokens of a request whose trace has none; default 512 and
	// 128.
	Input, Output int
	// ClientTimeouts is the timeouts every client sends with its requests.
	ClientTimeouts admission.ClientTimeouts

	Policy placement.Policy // zero: placement.DefaultPolicy
	Name   string           // of the policy in the result; "" means the eviction policy's name
	Seed   uint64
	// Start is the wall-clock time of the trace's start; default Monday, 5 January 2026,
	// 0:00 UTC.
	Start time.Time
	// Until is the minimum duration from the trace's start; 0 ends the run with the last
	// request.
	Until time.Duration
	// Latency is the one-way delay between a node and the orchestrator; default 1 ms,
	// negative for none.
	Latency time.Duration
	// Gather is the delay from a change to the turn that handles it, so that one turn
	// handles several changes. It stands for the duration of a real turn and lengthens
	// each cold start by about as much. Default 1 ms, or 0.05 ms per GPU above 20 GPUs;
	// negative for none.
	Gather time.Duration

	// Foresight, if not nil, records use history and forecasts from it, as the platform does.
	// Open sets its History and Next.
	Foresight *foresight.Options
	// Next, if not nil, replaces the forecast: it returns the next use of a function
	// after a time of the trace, 0 for never. With eviction.Future the policy knows the
	// future.
	Next func(name functions.Name, at time.Duration) time.Duration

	// Begin, if not nil, is called once before the first event. It schedules faults
	// (State.At) or drives a run without a trace.
	Begin func(*State)
	// Step, if not nil, is called after every event. An error ends the run.
	Step func(*State) error
	// Event, if not nil, receives the orchestrator's events.
	Event func(functions.Event)
	// Progress, if not nil, is called periodically.
	Progress func(Progress)
	// Sample is the interval of the GPU samples in Result.Samples; 0 for none.
	Sample time.Duration
}

// StartTimes are the durations of one start, and of the replica's exit.
type StartTimes struct {
	Plan   time.Duration // listing the source
	Exec   time.Duration // from the load command to the process, with the bytes on the node
	Spawn  time.Duration // from the process to an engine ready for weights
	Warmup time.Duration // from loaded weights to the first token
	Rise   time.Duration // wake-up of a sleeping replica, without the copy of its weights
	Exit   time.Duration // from the stop command to the end of the process
}

type Progress struct {
	At       time.Duration // virtual
	Requests int64
	Cold     int64
}

// defaultStart is the default of Config.Start: a Monday.
var defaultStart = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

func (c Config) withDefaults() Config {
	c.Input, c.Output = cmp.Or(max(c.Input, 0), 512), cmp.Or(max(c.Output, 0), 128)
	c.Policy = cmp.Or(c.Policy, placement.DefaultPolicy)
	c.Name = cmp.Or(c.Name, c.Policy.Eviction.String())
	c.Start = cmp.Or(c.Start, defaultStart)
	c.Latency = max(cmp.Or(c.Latency, time.Millisecond), 0)
	c.Gather = max(cmp.Or(c.Gather, max(time.Millisecond, time.Duration(c.Fleet.GPUs())*50*time.Microsecond)), 0)
	return c
}

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

// unplaceableReason returns why no node can hold a model; "" if one can.
func (c *Config) unplaceableReason(m *functions.Model) string {
	reason := "no node has that many GPUs"
	r, size := m.Spec.Resources, c.size(m)
	for i := range c.Fleet.Nodes {
		n := &c.Fleet.Nodes[i]
		switch {
		case n.Count < 1 || n.GPUs < r.GPUs:
		case r.GPUs > 0 && r.GPUMemory > n.GPUMemory:
			reason = "no node has GPUs with " + r.GPUMemory.String() + " of memory"
		case r.Memory > n.Memory:
			reason = "no node has " + r.Memory.String() + " of host memory"
		case n.Store > 0 && m.Spec.Source != "" && size > n.Store:
			reason = "no node's store takes its " + size.String()
		default:
			return ""
		}
	}
	return reason
}
