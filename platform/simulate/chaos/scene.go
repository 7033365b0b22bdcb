package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Scene is a run: what there is, and what happens. It is the whole of it: the
// same scene gives the same run.
type Scene struct {
	Seed   uint64             `json:"seed"` // of everything that is drawn while it is played
	Policy string             `json:"policy"`
	Learn  bool               `json:"learn,omitempty"` // idle times come from history
	Ahead  bool               `json:"ahead,omitempty"` // and starts ahead of requests
	Hosts  []Host             `json:"hosts"`
	Models []Model            `json:"models"`
	Teams  []Team             `json:"teams,omitempty"`
	Faults []Fault            `json:"faults"`
	Calm   functions.Duration `json:"calm"` // from then on nothing breaks
	Note   string             `json:"note,omitempty"`
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

// Team has GPUs of its own.
type Team struct {
	Name       string `json:"name"`
	Guaranteed int    `json:"guaranteed,omitempty"`
	Max        int    `json:"max,omitempty"`
}

// Fault is something that happens. Node and Model are numbers of hosts and
// models, taken modulo how many there are; N is a count or a factor, For how long
// it lasts.
type Fault struct {
	At    functions.Duration `json:"at"`
	Do    string             `json:"do"`
	Node  int                `json:"node,omitempty"`
	Model int                `json:"model,omitempty"`
	N     int                `json:"n,omitempty"`
	For   functions.Duration `json:"for,omitempty"`
}

// What can happen.
const (
	ask       = "ask"       // N requests for Model
	kill      = "kill"      // Node loses its power For so long
	partition = "partition" // Node is cut off
	slow      = "slow"      // its link and disk are N times slower
	broken    = "broken"    // starts of Model fail
	crash     = "crash"     // the engine of the Nth replica dies
	memory    = "memory"    // the same, as memory that ran out tells it
	hang      = "hang"      // it says nothing any more
	sick      = "sick"      // the Nth GPU of Node falls ill
	stall     = "stall"     // the orchestrator stands still
	jump      = "jump"      // its wall clock jumps N seconds
	replace   = "replace"   // another takes over; the old one does not know For so long
	restart   = "restart"   // it is killed, and another begins
	late      = "late"      // commands take up to N ms longer
	doubled   = "doubled"   // heartbeats come twice, and late
	lost      = "lost"      // one heartbeat in N does not come
	unheard   = "unheard"   // one answer in N to a command is lost
	empty     = "empty"     // the catalogue has nothing in it For so long
	removed   = "removed"   // Model leaves the catalogue
)

// weights of the kinds of faults: how often each is drawn.
var weights = []struct {
	do string
	n  int
}{
	{kill, 3}, {partition, 3}, {slow, 1}, {broken, 2}, {crash, 3}, {memory, 1}, {hang, 2}, {sick, 1}, {stall, 2}, {jump, 1},
	{replace, 3}, {restart, 2}, {late, 2}, {doubled, 2}, {lost, 2}, {unheard, 2}, {empty, 1}, {removed, 1},
}

const (
	stormy = 6 * time.Minute // the part with faults
	calm   = 4 * time.Minute // before models are asked again
)

var evictions = []string{"lru", "lfu", "gdsf", "next-use"}

// Make draws a scene.
func Make(seed uint64) Scene {
	rng := rand.New(rand.NewPCG(seed, 0x7468617763686173))
	s := Scene{Seed: seed, Policy: evictions[rng.IntN(len(evictions))], Calm: functions.Duration(stormy)}
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
		if rng.IntN(3) == 0 { // never less than one of its models needs
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
func (s *Scene) drawFaults(rng *rand.Rand) {
	after := func(most time.Duration) functions.Duration {
		return functions.Duration(time.Duration(rng.Int64N(int64(most))).Round(time.Millisecond))
	}
	for range 20 + rng.IntN(60) { // requests come in bunches
		n := 1
		if rng.IntN(4) == 0 {
			n += rng.IntN(12)
		}
		s.Faults = append(s.Faults, Fault{At: after(stormy), Do: ask, Model: rng.IntN(len(s.Models)), N: n})
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
		d := Fault{At: after(stormy), Do: do, Node: rng.IntN(len(s.Hosts)), Model: rng.IntN(len(s.Models)), N: 2 + rng.IntN(6), For: functions.Duration(time.Duration(1+rng.IntN(40)) * time.Second)}
		switch do {
		case jump:
			// Back by a minute at most: real clocks are monotonic, and what a
			// failure's pause is told as would last for as long as this one went back.
			d.N = []int{-60, -20, -5, 5, 60, 86400}[rng.IntN(6)]
		case kill, partition:
			d.For *= 1 + functions.Duration(rng.IntN(3))
		case late:
			d.N = 50 * (1 + rng.IntN(60))
		case empty:
			d.For = functions.Duration(time.Duration(200+rng.IntN(1500)) * time.Millisecond) // less than a second look
		case stall:
			d.For = min(d.For, functions.Duration(20*time.Second))
		}
		s.Faults = append(s.Faults, d)
	}
}

// name of the ith model.
func (s *Scene) name(i int) functions.Name {
	return functions.Name{Team: s.Models[i].Team, Name: fmt.Sprint("m", i)}
}

// model as a catalogue has it.
func (s *Scene) model(i int) *functions.Model {
	x := &s.Models[i]
	m := functions.NewModel()
	n := s.name(i)
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

// team of the scene, the zero one where it says nothing of it.
func (s *Scene) team(name string) Team {
	for _, t := range s.Teams {
		if t.Name == name {
			return t
		}
	}
	return Team{Name: name}
}
