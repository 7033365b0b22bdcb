package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Experiment is the complete description of a run; the same experiment gives the same run.
type Experiment struct {
	Seed      uint64             `json:"seed"` // seeds every draw of the run
	Policy    string             `json:"policy"`
	Learn     bool               `json:"learn,omitempty"` // idle times are learned from history
	Ahead     bool               `json:"ahead,omitempty"` // replicas start ahead of forecast requests
	Hosts     []Host             `json:"hosts"`
	Models    []Model            `json:"models"`
	Teams     []Team             `json:"teams,omitempty"`
	Faults    []Fault            `json:"faults"`
	FaultsEnd functions.Duration `json:"calm"` // no fault starts after this
	Note      string             `json:"note,omitempty"`
}

// Host is a node.
type Host struct {
	GPUs   int `json:"gpus"`
	Memory int `json:"memory"` // GiB
	Store  int `json:"store"`  // GiB
}

// Model is one function. Sizes are in GiB; a GPU has 80.
type Model struct {
	Team   string             `json:"team"`
	GPUs   int                `json:"gpus"`
	Share  int                `json:"share,omitempty"` // of each GPU's memory; 0: whole GPUs
	Size   int                `json:"size"`
	Min    int                `json:"min,omitempty"`
	Max    int                `json:"max"`
	Target int                `json:"target"`
	Idle   functions.Duration `json:"idle"`
	Queue  int                `json:"queue"`
	Sleeps bool               `json:"sleeps,omitempty"`
}

// Team is a team and its GPU quota.
type Team struct {
	Name       string `json:"name"`
	Guaranteed int    `json:"guaranteed,omitempty"`
	Max        int    `json:"max,omitempty"`
}

// Fault is one request burst or failure. Node and Model are indices of hosts and models,
// modulo their number; N is a count or a factor, For a duration.
type Fault struct {
	At    functions.Duration `json:"at"`
	Do    string             `json:"do"`
	Node  int                `json:"node,omitempty"`
	Model int                `json:"model,omitempty"`
	N     int                `json:"n,omitempty"`
	For   functions.Duration `json:"for,omitempty"`
}

// Kinds of faults.
const (
	requestBurst   = "ask"       // N requests for Model
	kill           = "kill"      // Node is powered off For the duration
	partition      = "partition" // Node is partitioned
	slow           = "slow"      // Node's link and disk are N times slower
	broken         = "broken"    // starts of Model fail
	crash          = "crash"     // the engine of the Nth replica dies
	memory         = "memory"    // the Nth replica runs out of memory
	hang           = "hang"      // the Nth replica's engine hangs
	unhealthy      = "sick"      // the Nth GPU of Node is unhealthy
	stall          = "stall"     // the orchestrator stalls
	jump           = "jump"      // its wall clock jumps N seconds
	replace        = "replace"   // another orchestrator takes over; the old one does not know For the duration
	restart        = "restart"   // the orchestrator is killed and started anew
	commandDelay   = "late"      // commands take up to N ms longer
	heartbeatTwice = "doubled"   // heartbeats arrive twice, the second late
	heartbeatLost  = "lost"      // one heartbeat in N is lost
	replyLost      = "unheard"   // one reply in N to a command is lost
	empty          = "empty"     // the catalogue is empty For the duration
	removed        = "removed"   // Model leaves the catalogue
)

// weights are the relative frequencies of the kinds of faults.
var weights = []struct {
	do string
	n  int
}{
	{kill, 3}, {partition, 3}, {slow, 1}, {broken, 2}, {crash, 3}, {memory, 1}, {hang, 2}, {unhealthy, 1}, {stall, 2}, {jump, 1},
	{replace, 3}, {restart, 2}, {commandDelay, 2}, {heartbeatTwice, 2}, {heartbeatLost, 2}, {replyLost, 2}, {empty, 1}, {removed, 1},
}

const (
	faultPeriod = 6 * time.Minute // the part with faults
	finalPause  = 4 * time.Minute // the pause before the last requests
)

var evictions = []string{"lru", "lfu", "gdsf", "next-use"}

// NewExperiment draws an experiment from a seed.
func NewExperiment(seed uint64) Experiment {
	rng := rand.New(rand.NewPCG(seed, 0x7468617763686173))
	s := Experiment{Seed: seed, Policy: evictions[rng.IntN(len(evictions))], FaultsEnd: functions.Duration(faultPeriod)}
	gpus := 0
	for range 1 + rng.IntN(3) {
		h := Host{GPUs: 1 + rng.IntN(4), Memory: 64 << rng.IntN(4), Store: 200 + 100*rng.IntN(8)}
		gpus = max(gpus, h.GPUs)
		s.Hosts = append(s.Hosts, h)
	}
	names := []string{"a", "b", "c"}[:1+rng.IntN(3)]
	for range 2 + rng.IntN(6) {
		m := Model{
			Team: names[rng.IntN(len(names))], GPUs: 1, Size: 2 + rng.IntN(30), Max: 1 + rng.IntN(3), Target: 1 + rng.IntN(4),
			Idle: functions.Duration(time.Duration(5+rng.IntN(90)) * time.Second), Queue: 5 + rng.IntN(100), Sleeps: rng.IntN(3) == 0,
		}
		switch rng.IntN(6) {
		case 0:
			m.GPUs = 1 + rng.IntN(gpus)
		case 1:
			m.Share = max(20+10*rng.IntN(4), m.Size+2)
		}
		if rng.IntN(8) == 0 {
			m.Min = 1
		}
		s.Models = append(s.Models, m)
	}
	for _, n := range names {
		t := Team{Name: n}
		if rng.IntN(2) == 0 {
			t.Guaranteed = rng.IntN(3)
		}
		if rng.IntN(3) == 0 { // at least what one of its models needs
			for _, m := range s.Models {
				if m.Team == n {
					t.Max = max(t.Max, m.GPUs, m.GPUs*m.Min)
				}
			}
			if t.Max > 0 {
				t.Max = max(t.Max+rng.IntN(2), t.Guaranteed)
			}
		}
		s.Teams = append(s.Teams, t)
	}
	s.drawFaults(rng)
	if s.Learn = rng.IntN(3) == 0; s.Learn {
		s.Ahead = rng.IntN(2) == 0
	}
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return s
}

// drawFaults draws the requests and the faults.
func (e *Experiment) drawFaults(rng *rand.Rand) {
	after := func(maximum time.Duration) functions.Duration {
		return functions.Duration(time.Duration(rng.Int64N(int64(maximum))).Round(time.Millisecond))
	}
	for range 20 + rng.IntN(60) { // requests come in bursts
		n := 1
		if rng.IntN(4) == 0 {
			n += rng.IntN(12)
		}
		e.Faults = append(e.Faults, Fault{At: after(faultPeriod), Do: requestBurst, Model: rng.IntN(len(e.Models)), N: n})
	}
	sum := 0
	for _, w := range weights {
		sum += w.n
	}
	for range 2 + rng.IntN(9) {
		x, do := rng.IntN(sum), ""
		for _, w := range weights {
			if x -= w.n; x < 0 {
				do = w.do
				break
			}
		}
		d := Fault{At: after(faultPeriod), Do: do, Node: rng.IntN(len(e.Hosts)), Model: rng.IntN(len(e.Models)), N: 2 + rng.IntN(6),
			For: functions.Duration(time.Duration(1+rng.IntN(40)) * time.Second)}
		switch do {
		case jump:
			// Back by a minute at most: real clocks are monotonic, and a failure's
			// backoff would last for as long as the clock went back.
			d.N = []int{-60, -20, -5, 5, 60, 86400}[rng.IntN(6)]
		case kill, partition:
			d.For *= 1 + functions.Duration(rng.IntN(3))
		case commandDelay:
			d.N = 50 * (1 + rng.IntN(60))
		case empty:
			d.For = functions.Duration(time.Duration(200+rng.IntN(1500)) * time.Millisecond) // less than the catalogue's recheck
		case stall:
			d.For = min(d.For, functions.Duration(20*time.Second))
		}
		e.Faults = append(e.Faults, d)
	}
}

// name returns the name of model i.
func (e *Experiment) name(i int) functions.Name {
	return functions.Name{Team: e.Models[i].Team, Name: fmt.Sprint("m", i)}
}

// model returns model i as a catalogue entry.
func (e *Experiment) model(i int) *functions.Model {
	x := &e.Models[i]
	m := functions.NewModel()
	n := e.name(i)
	m.Metadata.Name, m.Metadata.Namespace = n.Name, n.Team
	m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, "az://account/container/"+n.Name
	if x.Sleeps {
		m.Spec.Args = []string{"--enable-sleep-mode"}
	}
	m.Spec.Resources = functions.Resources{GPUs: x.GPUs, GPUMemory: functions.Bytes(x.Share) << 30, Memory: 1 << 30}
	m.Spec.Scale = functions.Scale{Min: x.Min, Max: x.Max, Target: x.Target, Idle: x.Idle}
	m.Spec.Queue.Requests = x.Queue
	return m
}

// team returns a team of the experiment, the zero Team if the experiment has none.
func (e *Experiment) team(name string) Team {
	for _, t := range e.Teams {
		if t.Name == name {
			return t
		}
	}
	return Team{Name: name}
}
