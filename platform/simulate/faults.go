package simulate

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// Faults are what goes wrong in a run.
type Faults struct {
	breaks  map[functions.Name]string // starts of a function fail with this cause
	stalled time.Duration             // the orchestrator stalls until then

	// CommandDelay, if not nil, returns a command's extra delay. HeartbeatDelays, if not nil, returns the
	// delay of each copy of a node's heartbeat: an empty slice loses it, two entries
	// double it. LoseReply, if not nil, reports whether the reply to an executed
	// command is lost.
	CommandDelay    func() time.Duration
	HeartbeatDelays func(node string) []time.Duration
	LoseReply       func() bool
}

// RequestEnd records how a request ended.
type RequestEnd struct {
	ID       uint64 // in arrival order, from 1
	Function functions.Name
	Arrived  time.Duration
	// Code is "" if it was answered, EndBroken, EndClientLeft, or the code of its refusal.
	Code    openai.Code
	Message string
	First   time.Duration // time of its first token; 0 if none came
	Replica string        // the last one that failed it; "" if none did
	Low     bool          // its priority was low
}

// Codes of requests that ended without an answer or a refusal.
const (
	EndBroken           openai.Code = "broken" // its replica died after the first token
	EndClientLeft       openai.Code = "left"   // its client disconnected
	EndOrchestratorLost openai.Code = "lost"   // its orchestrator died
)

// Now returns the virtual time since the start of the trace.
func (s *State) Now() time.Duration { return s.clock.now }

func (s *State) Loop() *orchestrator.Orchestrator { return s.loop.orchestrator }

func (s *State) At(at time.Duration, f func()) { s.clock.set(at, callback(f), 0, 0) }

func (s *State) After(d time.Duration, f func()) { s.At(s.clock.now+d, f) }

type callback func()

func (c callback) act(uint8)          { c() }
func (c callback) generation() uint32 { return 0 }

// FunctionView is the state of a function on the data path.
type FunctionView struct {
	Name           functions.Name
	Known          bool           // it is in the catalogue
	Active, Queued int            // requests of its queue
	Ready          int            // READY replicas in its snapshot
	InFlight       map[string]int // by replica of the snapshot
}

// Functions yields all functions in the order they first appeared.
func (s *State) Functions(yield func(FunctionView) bool) {
	for _, f := range s.list {
		l := f.queue.Load(s.wall())
		v := FunctionView{Name: f.name, Known: f.snapshot != nil, Active: l.Active, Queued: l.Queued}
		if f.snapshot != nil {
			v.Ready = len(f.snapshot.Replicas)
			v.InFlight = make(map[string]int, v.Ready)
			for i := range f.snapshot.Replicas {
				id := f.snapshot.Replicas[i].ID
				v.InFlight[id] = f.queue.InFlight(id)
			}
		}
		if !yield(v) {
			return
		}
	}
}
