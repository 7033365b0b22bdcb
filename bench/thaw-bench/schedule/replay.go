package schedule

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/study"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// publicDay is the file of a real day of 990 functions.
const publicDay = "azure-functions-990x1440min.csv"

// Cold is the share of cold requests on the public day under each policy.
type Cold struct {
	About    string    `json:"about"`
	GPUs     int       `json:"gpus"`
	Capacity float64   `json:"capacity"` // ratio of GPU memory to the bytes of all models
	Rows     []ColdRow `json:"policies"`
	Best     string    `json:"best"`
	ToLRU    float64   `json:"best_to_lru"`
	// Two policies know the future: one weighs the next use with the cost of loading
	// each byte again, the other evicts the model used last (the traces' README).
	ToFuture   float64 `json:"best_to_clairvoyant"`
	ToFurthest float64 `json:"best_to_furthest"`
}

// ColdRow is the result of one policy.
type ColdRow struct {
	Policy    string  `json:"policy"`
	Requests  int64   `json:"requests"`
	Cold      int64   `json:"cold"`
	Share     float64 `json:"cold_share"`
	ToLRU     float64 `json:"to_lru"`
	ToFuture  float64 `json:"to_clairvoyant"`
	Evictions int64   `json:"evictions"`
	P99       float64 `json:"ttft_p99_seconds"`
}

// openDay opens the public day with at most one request per function and minute: the
// policies differ in which functions are up, not in how often they are called.
func openDay(o Options) (*trace.Trace, trace.Requests, error) {
	if o.Traces == "" {
		return nil, nil, errMissing
	}
	file := filepath.Join(o.Traces, publicDay)
	if _, err := os.Stat(file); err != nil {
		return nil, nil, errMissing
	}
	t, err := trace.Open(file, trace.Options{Seed: 1, PerMinute: 1})
	if err != nil {
		return nil, nil, err
	}
	return t, truncateTrace(t.Read(), time.Duration(o.Minutes)*time.Minute), nil
}

// truncateTrace returns the start of a trace; end 0: all of it.
func truncateTrace(read trace.Requests, end time.Duration) trace.Requests {
	if end <= 0 {
		return read
	}
	return func(yield func(trace.Request, error) bool) {
		next, stop := iter.Pull2(read)
		defer stop()
		for {
			r, err, ok := next()
			if !ok || err == nil && r.At >= end || !yield(r, err) {
				return
			}
		}
	}
}

// The costs of the traces' README: a start takes eight seconds and the bytes at 2 GiB/s,
// however many start at once. So each size is an engine of its own with that boot time;
// nothing is staged, and no replica sleeps.
const (
	boot = 8 * time.Second
	rate = 2 * gib // per second
)

func dayFleet(gpus int) *fleet.Fleet {
	var n fleet.HostKind
	n.Default()
	n.Name, n.GPUs, n.Memory, n.Copy, n.Disk = "node", gpus, 1<<44, 1<<50, 1<<50
	return &fleet.Fleet{Nodes: []fleet.HostKind{n}, Engine: fleet.Engine{Warmup: 1, Exec: 1, Exit: 1, Prefill: 100_000, Decode: 1000}}
}

// dayStudy returns a study of the day; each, if not 0, is the size of every model.
func dayStudy(t *trace.Trace, read trace.Requests, f *fleet.Fleet, each functions.Bytes) (s *study.Study, total functions.Bytes) {
	s = &study.Study{Fleet: f, Trace: read, Requests: t.Requests, Span: t.Span, Seed: 1, Engines: map[functions.Engine]fleet.Engine{}}
	s.Models, s.Sizes = study.Invent(study.Names(t, 0), f, 1)
	for _, m := range s.Models {
		size := s.Sizes[m.FullName()]
		if each > 0 {
			size = each
			s.Sizes[m.FullName()], m.Spec.Resources.GPUMemory = each, each
		}
		m.Spec.Source, m.Spec.Engine = "", functions.Engine("of-"+size.String())
		m.Spec.Scale.Max, m.Spec.Resources.Memory = 1, 0
		e := f.Engine
		e.Spawn = functions.Duration(boot + time.Duration(float64(size)/float64(rate)*float64(time.Second)))
		s.Engines[m.Spec.Engine] = e
		total += size
	}
	return s, total
}

// measureColdShare replays the day with GPU memory for 13 % of all models.
func measureColdShare(ctx context.Context, o Options) (*Cold, error) {
	t, read, err := openDay(o)
	if err != nil {
		return nil, err
	}
	const part = 0.13
	_, total := dayStudy(t, read, dayFleet(1), 0)
	gpus := int(float64(total)*part/float64(80*gib) + 0.5)
	f := dayFleet(gpus)
	s, _ := dayStudy(t, read, f, 0)
	const policies = "lru+bare+idle=48h,lru+idle=48h,lfu+idle=48h,gdsf+idle=48h,next-use+idle=48h,furthest+idle=48h,clairvoyant+idle=48h"
	if s.Policies, err = study.ParsePolicies(policies); err != nil {
		return nil, err
	}
	out, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cold{GPUs: gpus, Capacity: float64(f.GPUMemory()) / float64(total)}
	c.About = fmt.Sprintf("Cold share on a day of 990 functions (azure-functions, once for each minute in use), models of 1 to 64 GiB "+
		"drawn by the seed, %s of %s as capacity, a start %v and the bytes at 2 GiB/s, no idle time",
		f.GPUMemory().Human(), total.Human(), boot)
	byName := map[string]int64{}
	for _, r := range out.Runs {
		name, _, _ := strings.Cut(r.Result.Policy, "+")
		if name == "lru" && !r.Policy.Bare { // plain lru is the baseline
			name = "lru, the missed left alone"
		}
		byName[name] = r.Cold
		c.Rows = append(c.Rows,
			ColdRow{Policy: name, Requests: r.Requests, Cold: r.Cold, Share: r.ColdShare, Evictions: r.Evictions, P99: r.TTFT.P99})
	}
	best := int64(-1)
	for i := range c.Rows {
		x := &c.Rows[i]
		x.ToLRU = float64(x.Cold) / float64(max(byName["lru"], 1))
		x.ToFuture = float64(x.Cold) / float64(max(byName[study.Clairvoyant], 1))
		if x.Policy != study.Clairvoyant && x.Policy != study.Furthest && (best < 0 || x.Cold < best) {
			best, c.Best, c.ToLRU, c.ToFuture = x.Cold, x.Policy, x.ToLRU, x.ToFuture
			c.ToFurthest = float64(x.Cold) / float64(max(byName[study.Furthest], 1))
		}
	}
	return c, nil
}

// Keep compares fixed idle times with learned ones.
type Keep struct {
	About string    `json:"about"`
	Rows  []KeepRow `json:"policies"`
	Colds float64   `json:"learned_to_fixed_colds"`
	Idle  float64   `json:"learned_to_fixed_idle"`
}

// KeepRow is the result of one idle-time policy.
type KeepRow struct {
	Policy   string  `json:"policy"`
	Requests int64   `json:"requests"`
	Cold     int64   `json:"cold"`
	Minutes  float64 `json:"idle_minutes"` // idle time of READY replicas, unused ones included
	Colds    float64 `json:"colds_to_fixed"`
	Idle     float64 `json:"idle_to_fixed"`
}

// measureKeepAlive replays the day with room for all models: only idle times end a
// replica. All models are alike, four to a GPU, so that GPU-hours count minutes.
func measureKeepAlive(ctx context.Context, o Options) (*Keep, error) {
	t, read, err := openDay(o)
	if err != nil {
		return nil, err
	}
	f := dayFleet(len(t.Uses)/4 + 8)
	s, _ := dayStudy(t, read, f, 20*gib)
	s.Budget = 10_000 * time.Hour // unlimited: the gain is measured, not the cost
	if s.Policies, err = study.ParsePolicies("lru+idle=10m,lru+idle=10m+learned,lru+idle=10m+learned+prewarm"); err != nil {
		return nil, err
	}
	out, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	k := &Keep{About: "Keep-alive on the same day, with room for all: a fixed 10 min against what was learned"}
	for i, r := range out.Runs {
		x := KeepRow{Policy: []string{"fixed 10 min", "learned", "learned, and started ahead"}[i], Requests: r.Requests, Cold: r.Cold}
		x.Minutes = (r.GPUHours.Idle + r.GPUHours.Wasted) * 60 * 4
		k.Rows = append(k.Rows, x)
	}
	fixed := k.Rows[0]
	best := -1
	for i := range k.Rows {
		x := &k.Rows[i]
		x.Colds, x.Idle = float64(x.Cold)/float64(max(fixed.Cold, 1)), x.Minutes/max(fixed.Minutes, 1e-9)
		// The fewest cold requests at no more idle time.
		if i > 0 && (best < 0 || x.Idle <= 1.03 && (k.Rows[best].Idle > 1.03 || x.Colds < k.Rows[best].Colds)) {
			best = i
		}
	}
	k.Colds, k.Idle = k.Rows[best].Colds, k.Rows[best].Idle
	return k, nil
}
