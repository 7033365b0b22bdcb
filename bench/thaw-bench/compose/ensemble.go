package compose

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/play"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// Ways to ask five members and then the coordinator, in the order of the table.
const (
	asComposition = iota
	atOnce        // a client that asks all members at once, and then the coordinator
	inTurn        // a client that asks one after the other
	ways
)

var wayNames = [ways]string{"Composition", "all at once, then the coordinator", "one after the other"}

// Way is one way to ask, of one or several rounds. All models are cold at its start.
type Way struct {
	Name    string         `json:"name"`
	Seconds []float64      `json:"seconds"` // until the coordinator's answer is whole
	Median  float64        `json:"median_seconds"`
	Starts  map[string]int `json:"most_starts_in_a_round"` // by model
	GPU     float64        `json:"loading_gpu_seconds"`    // of all rounds
}

// Ensemble compares the ways to ask.
type Ensemble struct {
	Models int   `json:"models"`
	GPUs   int   `json:"gpus"`
	Ways   []Way `json:"ways"`
	// Ratio is the Composition's time over that of the better of the others.
	Ratio float64 `json:"ratio"`
}

const (
	ensembleGPUs = 2
	ensembleGoal = 0.75
	ensembleLoad = 2 * time.Second // of a live engine
)

func newEnsemble() *Ensemble {
	e := &Ensemble{Models: len(members) + 1, GPUs: ensembleGPUs, Ways: make([]Way, ways)}
	for i := range e.Ways {
		e.Ways[i] = Way{Name: wayNames[i], Starts: map[string]int{}}
	}
	return e
}

func (w *Way) add(took time.Duration, l *loads) {
	w.Seconds, w.GPU = append(w.Seconds, took.Seconds()), w.GPU+l.Seconds
	for name, n := range l.Starts {
		w.Starts[name] = max(w.Starts[name], n)
	}
}

// most is the highest number of starts of one model in a round.
func (w *Way) most() (n int) {
	for _, x := range w.Starts {
		n = max(n, x)
	}
	return n
}

func (e *Ensemble) finish() {
	for i := range e.Ways {
		e.Ways[i].Median = report.Quantile(e.Ways[i].Seconds, 0.5)
	}
	e.Ratio = e.Ways[asComposition].Median / min(e.Ways[atOnce].Median, e.Ways[inTurn].Median)
}

// measureEnsemble asks the members in all ways in turns, live, on GPUs that thaw serve is
// told of. Each time has a thaw serve of its own, which has started no model: one that was
// evicted a moment ago would be kept from eviction for a while.
func measureEnsemble(ctx context.Context, o *Options) (*Ensemble, error) {
	e := newEnsemble()
	for round := range o.Ensembles {
		for i := range ways {
			i = (i + round) % ways
			took, l, err := o.askOnce(ctx, fmt.Sprintf("ensemble-%d-%d", round, i), i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", wayNames[i], err)
			}
			e.Ways[i].add(took, &l)
			o.Progress(fmt.Sprintf("ensemble: %s: %v, %d loads", wayNames[i], took.Round(time.Millisecond), l.all()))
		}
	}
	e.finish()
	return e, nil
}

// askOnce asks the members in one way.
func (o *Options) askOnce(ctx context.Context, part string, way int) (took time.Duration, l loads, err error) {
	all := append(members[:len(members):len(members)], coordinator)
	documents := []map[string]any{compositionDocument(functions.PatternEnsemble, members, map[string]any{"quorum": len(members), "patience": "5m"})}
	for _, m := range all {
		documents = append(documents, o.modelDocument(m, 1, o.load(ensembleLoad), time.Hour))
	}
	p, err := o.start(ctx, part, ensembleGPUs, documents...)
	if err != nil {
		return 0, l, err
	}
	defer p.End()
	const prompt = "@fake tokens=100 delay=2ms" // a longer answer than members may agree on
	ask := func(model string) error { _, _, err := p.ask(ctx, model, prompt, true); return err }
	began := time.Now()
	switch way {
	case asComposition:
		err = ask(panel)
	case atOnce:
		var wg sync.WaitGroup
		errs := make([]error, len(members))
		for j, m := range members {
			wg.Go(func() { errs[j] = ask(m) })
		}
		wg.Wait()
		if err = errors.Join(errs...); err == nil {
			err = ask(coordinator)
		}
	case inTurn:
		for _, m := range all {
			if err == nil {
				err = ask(m)
			}
		}
	}
	took = time.Since(began)
	if err == nil {
		l, err = p.loads(ctx, all)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, p.Process.Tail())
	}
	return took, l, err
}

// newFleet is one host with a number of GPUs.
func newFleet(gpus int) *fleet.Fleet {
	var n fleet.HostKind
	n.Default()
	n.Name, n.GPUs = "node", gpus
	return &fleet.Fleet{Nodes: []fleet.HostKind{n}, Engine: fleet.DefaultEngine}
}

// simulatedModel is a model of one GPU.
func simulatedModel(name string, idle time.Duration) *functions.Model {
	m := functions.NewModel()
	m.Metadata.Name = name
	m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, "az://account/container/"+name
	m.Spec.Resources = functions.Resources{GPUs: 1, Memory: 1 << 30}
	m.Spec.Queue.Wait, m.Spec.Queue.Requests = functions.Duration(48*time.Hour), 10_000
	m.Spec.Scale.Idle = functions.Duration(idle)
	return m
}

// noRequests is the trace of a simulation that is driven from Begin.
func noRequests(func(simulate.Request, error) bool) {}

const (
	staged = time.Hour // by then every checkpoint of a simulation is on the disk, and no replica is left
	tokens = 800       // of a simulated prompt
	answer = 120       // of a simulated answer
)

// simulateEnsemble asks the members in all ways, on a simulated fleet. All checkpoints are
// staged, and in host memory.
func simulateEnsemble(ctx context.Context, o *Options) (*Ensemble, error) {
	all := append(members[:len(members):len(members)], coordinator)
	var models []*functions.Model
	for _, m := range all {
		models = append(models, simulatedModel(m, 5*time.Minute))
	}
	e := newEnsemble()
	for seed := range o.EnsembleSeeds {
		for i := range ways {
			took, l, err := simulateWay(ctx, i, uint64(seed+1), all, models)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", wayNames[i], err)
			}
			e.Ways[i].add(took, &l)
		}
	}
	e.finish()
	return e, nil
}

// simulateWay asks the members in one way.
func simulateWay(ctx context.Context, way int, seed uint64, all []string, models []*functions.Model) (took time.Duration, l loads,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun, failed := false, ""
	begin := func(st *simulate.State) {
		p := play.New(ctx, st, models, play.Tokens{Input: tokens, Output: answer})
		ask := func(member string, then func()) {
			p.Ask(member, func(e simulate.RequestEnd) {
				if e.Code != "" {
					failed = fmt.Sprintf("%s: %s", member, e.Code)
				}
				then()
			})
		}
		for i, m := range all {
			st.At(time.Duration(i)*5*time.Minute, func() { ask(m, func() {}) })
		}
		st.At(staged, func() {
			begun = true
			done := func() { took = st.Now() - staged }
			switch way {
			case asComposition:
				p.Start(compose.Plan{Pattern: compose.Ensemble, Members: members, Coordinator: coordinator, Quorum: len(members)},
					func(x play.Outcome) {
						if x.Err != nil {
							failed = x.Err.Error()
						}
						done()
					})
			case atOnce:
				left := len(members)
				for _, m := range members {
					ask(m, func() {
						if left--; left == 0 {
							ask(coordinator, done)
						}
					})
				}
			case inTurn:
				var next func(i int)
				next = func(i int) {
					if i == len(all) {
						done()
						return
					}
					ask(all[i], func() { next(i + 1) })
				}
				next(0)
			}
		})
	}
	_, err = simulate.Run(ctx, simulate.Config{
		Fleet: newFleet(ensembleGPUs), Functions: models, Requests: noRequests, Seed: seed,
		Foresight: &foresight.Options{}, Until: 2 * staged, Begin: begin,
		Event: func(e functions.Event) {
			if begun {
				l.add(e, all)
			}
		},
	})
	switch {
	case err != nil:
	case failed != "":
		err = errors.New(failed)
	case took == 0:
		err = errors.New("no end within an hour")
	}
	return took, l, err
}
