package schedule

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Fair is the effect of one team's queue on another team.
type Fair struct {
	Cases []FairCase `json:"cases"`
}

// FairCase is one GPU with and without a queue of 10,000. Seconds.
type FairCase struct {
	Name    string  `json:"name"`
	Service float64 `json:"service_seconds"`
	Switch  float64 `json:"switch_seconds"`
	Alone   float64 `json:"alone_seconds"`  // the longest wait of the other team
	Beside  float64 `json:"beside_seconds"` // with the queue there
	Rise    float64 `json:"rise_seconds"`
	Bound   float64 `json:"bound_seconds"` // one service time and one model switch
}

const (
	fairQueue   = 10_000
	fairService = 2 * time.Second // 100 tokens at 50 per second, one request at a time
	fairBoot    = 10 * time.Second
)

// measureFairness queues 10,000 requests of one team while another sends a few.
func measureFairness(ctx context.Context) (*Fair, error) {
	out := &Fair{}
	for _, c := range []struct {
		name string
		same bool
	}{{"for the same model", true}, {"for another model", false}} {
		x := FairCase{Name: c.name, Service: fairService.Seconds()}
		if !c.same {
			x.Switch = fairSwitch.Seconds()
		}
		var err error
		if x.Alone, err = fairRun(ctx, c.same, 0); err != nil {
			return nil, err
		}
		if x.Beside, err = fairRun(ctx, c.same, fairQueue); err != nil {
			return nil, err
		}
		x.Rise, x.Bound = x.Beside-x.Alone, x.Service+x.Switch
		out.Cases = append(out.Cases, x)
	}
	return out, nil
}

// fairSwitch is one exit and one start: of the process, its boot, and 40 GiB at 20
// GiB/s.
const fairSwitch = 300*time.Millisecond + 20*time.Millisecond + fairBoot + 2*time.Second

// fairRun returns the other team's longest wait.
func fairRun(ctx context.Context, same bool, queue int) (float64, error) {
	var n fleet.HostKind
	n.Default()
	n.Name, n.GPUs = "node", 1
	f := &fleet.Fleet{Nodes: []fleet.HostKind{n}, Engine: fleet.Engine{Spawn: functions.Duration(fairBoot), Warmup: 1, Prefill: 1_000_000, Decode: 50}}
	var models []*functions.Model
	sizes := map[functions.Name]functions.Bytes{}
	for _, team := range []string{"many", "few"} {
		m := functions.NewModel()
		m.Metadata.Namespace, m.Metadata.Name = team, "m"
		m.Spec.Engine = functions.EngineLlamaCpp
		m.Spec.Resources = functions.Resources{GPUs: 1, GPUMemory: 80 * gib}
		m.Spec.Scale.Target, m.Spec.Scale.Idle = 1, functions.Duration(48*time.Hour)
		m.Spec.Queue = functions.Queue{Requests: 2 * fairQueue, Bytes: 1 << 40, Wait: functions.Duration(48 * time.Hour)}
		models = append(models, m)
		sizes[m.FullName()] = 40 * gib
	}
	to := functions.Name{Team: "few", Name: "m"}
	var rs []trace.Request
	for range queue {
		r := trace.Request{At: time.Minute, Function: functions.Name{Team: "many", Name: "m"}, Team: "many", Output: 100}
		if same {
			r.Function = to
		}
		rs = append(rs, r)
	}
	// The other team's model was up before the queue, as in the run without a queue.
	rs = append(rs, trace.Request{Function: to, Team: "few", Output: 100})
	for i := range 30 {
		rs = append(rs, trace.Request{At: 2*time.Minute + time.Duration(i)*5*time.Minute, Function: to, Team: "few", Output: 100})
	}
	slices.SortStableFunc(rs, func(a, b trace.Request) int { return int(min(max(a.At-b.At, -1), 1)) })
	r, err := simulate.Run(ctx, simulate.Config{
		Fleet: f, Functions: models, Sizes: sizes, Seed: 1,
		Requests: func(yield func(trace.Request, error) bool) {
			for _, r := range rs {
				if !yield(r, nil) {
					return
				}
			}
		},
	})
	if err != nil {
		return 0, err
	}
	for _, t := range r.Teams {
		if t.Name == "few" {
			return t.WaitMax, nil
		}
	}
	return 0, fmt.Errorf("nobody of the other team asked")
}
