package simulate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/testkit/scenario"
)

// stage runs the scenarios on the virtual clock.
type stage struct {
	*testing.T
	st       *State
	messages map[string]string
	starts   map[string]int
	events   []functions.Event
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t, messages: map[string]string{}, starts: map[string]int{}}
	kind := func(name string) (n fleet.HostKind) {
		n.Default()
		n.Name, n.GPUs = name, 1
		return n
	}
	st, err := Open(Config{
		Fleet: &fleet.Fleet{Nodes: []fleet.HostKind{kind("a"), kind("b")}, Engine: fleet.Engine{
			Spawn: functions.Duration(300 * time.Millisecond), Warmup: functions.Duration(50 * time.Millisecond), Prefill: 1 << 20, Decode: 1,
		}},
		Sizes: map[functions.Name]functions.Bytes{functionName("x"): 1 << 30, functionName("y"): 1 << 30, functionName("z"): 1 << 30},
		Event: func(e functions.Event) {
			s.events = append(s.events, e)
			if e.Kind == "start" {
				_, short, _ := strings.Cut(e.Function, "/")
				s.starts[short]++
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.st = st
	st.OnRequestEnd = func(f RequestEnd) {
		if f.Code != "" && f.Code != EndClientLeft && f.Code != EndOrchestratorLost {
			s.messages[f.Function.Name] = f.Message
		}
	}
	s.Pass(0)
	return s
}

func (s *stage) Pass(d time.Duration) {
	if err := s.st.Pass(s.Context(), d); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) Deploy(ms ...*functions.Model) {
	s.st.Deploy(ms...)
	s.Pass(5 * time.Millisecond)
}

func functionName(m string) functions.Name {
	return functions.Name{Team: functions.DefaultTeam, Name: m}
}

func (s *stage) Ask(m string, n int) {
	delete(s.messages, m)
	for range n {
		s.st.Ask(Request{Function: functionName(m), Output: 1 << 30})
	}
	s.Pass(0)
}

func (s *stage) Leave(m string) {
	for _, q := range slices.Clone(s.st.traffic.active) {
		if q.f.name == functionName(m) && q.wait {
			q.leave()
			s.st.tally.Left++
			q.end(EndClientLeft, "")
		}
	}
	s.st.traffic.handleDecided()
	s.Pass(0)
}

func (s *stage) Finish(m string) {
	for _, q := range slices.Clone(s.st.traffic.active) {
		if q.f.name == functionName(m) && q.rep != nil && !q.rep.n.mute {
			q.done()
		}
	}
	s.st.traffic.handleDecided()
	s.Pass(0)
}

func (s *stage) Waiting(m string) int {
	return s.st.functionOf(functionName(m)).queue.Load(s.st.wall()).Queued
}
func (s *stage) Running(m string) int {
	return s.st.functionOf(functionName(m)).queue.Load(s.st.wall()).Active
}
func (s *stage) Refusal(m string) string { return s.messages[m] }

func (s *stage) Replicas(m string) (out []string) {
	for _, r := range s.st.Loop().Replicas() {
		if r.Function == functionName(m).String() && r.State != functions.Draining && !r.State.Over() {
			out = append(out, string(r.State)+"@"+strings.TrimSuffix(r.Node, "-1"))
		}
	}
	slices.Sort(out)
	return out
}

func (s *stage) Starts(m string) int   { return s.starts[m] }
func (s *stage) Break(m, cause string) { s.st.FailStarts(functionName(m), cause) }
func (s *stage) Vanish(n string)       { s.st.Partition(n + "-1") }
func (s *stage) Return(n string)       { s.st.Return(n + "-1"); s.Pass(5 * time.Millisecond) }
func (s *stage) Restart()              { s.st.Restart(); s.Pass(5 * time.Millisecond) }

func (s *stage) Model(name string, edit func(*functions.ModelSpec)) *functions.Model {
	return model(name, func(sp *functions.ModelSpec) {
		sp.Source, sp.Engine = "", functions.EngineEmber
		sp.Deadlines.FirstToken = functions.Duration(time.Hour)
		if edit != nil {
			edit(sp)
		}
	})
}

// TestScenarios runs the scenarios that every backend must pass.
func TestScenarios(t *testing.T) {
	scenario.Run(t, scenario.Options{Minute: time.Minute, Boot: 8 * time.Second}, func(t *testing.T, _ time.Duration, story scenario.Story) {
		s := newStage(t)
		defer func() {
			if t.Failed() {
				for _, e := range s.events {
					t.Logf("  %s %s %s %s %s %s %s", e.At.Format("04:05.000"), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
				}
			}
		}()
		story(t, s)
	})
}
