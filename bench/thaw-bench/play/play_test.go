package play

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func models(n int) (out []*functions.Model, names []string) {
	for i := range n {
		m := functions.NewModel()
		m.Metadata.Name = fmt.Sprintf("m%d", i)
		m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, "az://account/container/"+m.Metadata.Name
		m.Spec.Resources = functions.Resources{GPUs: 1, Memory: 1 << 30}
		out, names = append(out, m), append(names, m.Metadata.Name)
	}
	return out, names
}

// played is what a test compares of a run.
type played struct {
	Outcome Outcome
	Starts  map[string]int
	Order   []string // of starts, and of models that are READY
}

// playOne runs a plan on cold models. The last one is the coordinator.
func playOne(t *testing.T, gpus int, plan compose.Plan, edit ...func(*functions.Model)) played {
	t.Helper()
	ms, names := models(6)
	for _, e := range edit {
		for _, m := range ms {
			e(m)
		}
	}
	plan.Members, plan.Coordinator = names[:5], names[5]
	var host fleet.HostKind
	host.Default()
	host.Name, host.GPUs = "node", gpus
	x := played{Starts: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := false
	_, err := simulate.Run(ctx, simulate.Config{
		Fleet: &fleet.Fleet{Nodes: []fleet.HostKind{host}, Engine: fleet.DefaultEngine}, Functions: ms, Seed: 3, Foresight: &foresight.Options{}, Until: time.Hour,
		Requests: func(func(simulate.Request, error) bool) {},
		Event: func(e functions.Event) {
			if e.Kind == "start" {
				x.Starts[e.Function]++
			}
			if e.Kind == "start" || e.Kind == "ready" {
				x.Order = append(x.Order, e.Kind+" "+e.Function)
			}
		},
		Begin: func(st *simulate.State) {
			p := New(ctx, st, ms, Tokens{800, 120})
			st.At(time.Second, func() { p.Start(plan, func(o Outcome) { x.Outcome, ended = o, true }) })
		},
	})
	if err != nil || !ended || x.Outcome.Err != nil {
		t.Fatalf("%v, ended: %v, %v", err, ended, x.Outcome.Err)
	}
	for i := range x.Outcome.Calls { // of the real clock
		x.Outcome.Calls[i].Began, x.Outcome.Calls[i].Took = 0, 0
	}
	return x
}

// TestEnsemble: of five members and a coordinator on two GPUs each is loaded once, and two
// runs are equal.
func TestEnsemble(t *testing.T) {
	plan := compose.Plan{Pattern: compose.Ensemble, Quorum: 5}
	x := playOne(t, 2, plan)
	if len(x.Outcome.Calls) != 6 || len(x.Starts) != 6 {
		t.Errorf("%d calls, starts %v", len(x.Outcome.Calls), x.Starts)
	}
	for name, n := range x.Starts {
		if n != 1 {
			t.Errorf("%s was loaded %d times", name, n)
		}
	}
	// The last member is started when the first of those before it has answered, and the
	// coordinator when the second has: not when all have.
	if start, ready := slices.Index(x.Order, "start default/m5"), slices.Index(x.Order, "ready default/m4"); start > ready {
		t.Errorf("the coordinator waits for all answers: %v", x.Order)
	}
	for range 10 {
		if again := playOne(t, 2, plan); !reflect.DeepEqual(x, again) {
			t.Fatalf("%+v\n%+v", x, again)
		}
	}
}

// TestMemory: what fits together is counted in memory, as the scheduler does: three models of
// 25 GiB are on a GPU of 80 GiB at once, and one that takes the whole GPU is alone.
func TestMemory(t *testing.T) {
	most := func(memory functions.Bytes) int {
		x := playOne(t, 1, compose.Plan{Pattern: compose.Ensemble, Quorum: 5}, func(m *functions.Model) { m.Spec.Resources.GPUMemory = memory })
		for name, n := range x.Starts {
			if n != 1 {
				t.Errorf("%v: %s was loaded %d times", memory, name, n)
			}
		}
		at := slices.IndexFunc(x.Order, func(e string) bool { return strings.HasPrefix(e, "ready") })
		return at // starts before the first is READY
	}
	if whole, shared := most(0), most(25<<30); whole != 1 || shared != 3 {
		t.Errorf("%d and %d members start together", whole, shared)
	}
}

// TestDebate: m members of which f fit together are loaded at most m + r(m-f) times in r
// revisions.
func TestDebate(t *testing.T) {
	for gpus := 1; gpus <= 6; gpus++ {
		x := playOne(t, gpus, compose.Plan{Pattern: compose.Debate, Rounds: 2})
		loads := 0
		for name, n := range x.Starts {
			if name != "default/m5" {
				loads += n
			}
		}
		if most := 5 + 2*max(0, 5-gpus); loads > most || x.Starts["default/m5"] != 1 || x.Outcome.Rounds != 3 {
			t.Errorf("%d GPUs: %d rounds, loads %v, want %d of members", gpus, x.Outcome.Rounds, x.Starts, most)
		}
	}
}

// TestRefuses: what goes by the real clock is refused.
func TestRefuses(t *testing.T) {
	for _, plan := range []compose.Plan{{Patience: 1}, {Budget: compose.Budget{Time: 1}}, {Budget: compose.Budget{ColdStarts: 1}}} {
		ms, _ := models(1)
		var host fleet.HostKind
		host.Default()
		host.Name, host.GPUs = "node", 1
		st, err := simulate.Open(simulate.Config{Fleet: &fleet.Fleet{Nodes: []fleet.HostKind{host}, Engine: fleet.DefaultEngine}, Functions: ms})
		if err != nil {
			t.Fatal(err)
		}
		var o Outcome
		New(t.Context(), st, ms, Tokens{}).Start(plan, func(x Outcome) { o = x })
		if err := st.Pass(t.Context(), time.Second); err != nil || o.Err == nil {
			t.Errorf("%+v: %v, %v", plan, err, o.Err)
		}
	}
}
