package study

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Study describes a set of runs. Fleet, Models, Trace and Policies are required.
type Study struct {
	Fleet    *fleet.Fleet
	Models   []*functions.Model
	Teams    []*functions.Team
	Sizes    map[functions.Name]functions.Bytes // of checkpoints, if known
	Engines  map[functions.Engine]fleet.Engine  // engine times that differ from the fleet's
	Trace    trace.Requests
	Requests int64         // approximate number, for progress
	Span     time.Duration // approximate length, for charts
	Policies []Policy
	Budget   time.Duration // GPU time per hour for starts ahead, per team and in total; 0: the platform's default
	Sizing   *Sizing       // fleet sizes to try; nil: the fleet as it is
	Seed     uint64
	Parallel int // concurrent runs; 0: one per core
	// Progress, if not nil, is called periodically and never concurrently.
	Progress func(Progress)
}

// Sizing is the range of GPUs to try, and the goal.
type Sizing struct {
	Low, High int
	Goal      time.Duration // for the p99 of the time to first token; 0: none
}

type Progress struct {
	Done, Runs int           // runs
	Share      float64       // fraction of the requests of all known runs
	Cold       int64         // in all runs
	At         time.Duration // virtual time of the slowest run
}

type Run struct {
	Policy Policy `json:"-"`
	simulate.Result
	Took time.Duration `json:"-"`
}

// Outcome is the result of a study: the runs by policy in the order requested, and
// within a policy by GPUs.
type Outcome struct {
	Runs  []Run
	Needs []Need // by policy; empty without a goal
	Goal  time.Duration
}

// Need is the number of GPUs with which a policy reaches the goal.
type Need struct {
	Policy string  `json:"policy"`
	GPUs   int     `json:"gpus"` // 0: not reached within the range
	P99    float64 `json:"p99_seconds"`
	Below  float64 `json:"p99_with_one_less_seconds,omitempty"` // 0: unknown
}

// ParseSizing reads 4..64, or one number.
func ParseSizing(text string) (*Sizing, error) {
	low, high, ok := strings.Cut(text, "..")
	if !ok {
		high = low
	}
	a, err := strconv.Atoi(low)
	b, err2 := strconv.Atoi(high)
	if err != nil || err2 != nil || a < 1 || b < a || b > 100_000 {
		return nil, fmt.Errorf("%q is no range of GPUs: want such as 4..64", functions.Clip(text))
	}
	return &Sizing{Low: a, High: b}, nil
}

// steps returns at most ten fleet sizes of the curve, spaced by about the same factor.
func (s *Sizing) steps() (out []int) {
	const maximum = 9
	for i := range maximum {
		n := int(math.Round(float64(s.Low) * math.Pow(float64(s.High)/float64(s.Low), float64(i)/(maximum-1))))
		if len(out) == 0 || n > out[len(out)-1] {
			out = append(out, n)
		}
	}
	return out
}

type job struct {
	policy int
	gpus   int // 0: the fleet as it is
}

// Run executes all runs and returns when they have ended, or with the first error.
func (s *Study) Run(ctx context.Context) (*Outcome, error) {
	var jobs []job
	for i := range s.Policies {
		if s.Sizing == nil {
			jobs = append(jobs, job{i, 0})
			continue
		}
		for _, n := range s.Sizing.steps() {
			jobs = append(jobs, job{i, n})
		}
	}
	w := &studyRun{s: s, done: map[job]Run{}, at: map[job]simulate.Progress{}}
	if slices.ContainsFunc(s.Policies, func(p Policy) bool { return p.Future }) {
		var err error
		if w.future, err = readFuture(s.Trace); err != nil {
			return nil, err
		}
	}
	if err := w.runJobs(ctx, jobs); err != nil {
		return nil, err
	}
	out := &Outcome{}
	if s.Sizing != nil && s.Sizing.Goal > 0 {
		out.Goal = s.Sizing.Goal
		if err := w.narrowSizes(ctx); err != nil {
			return nil, err
		}
		for i := range s.Policies {
			out.Needs = append(out.Needs, w.need(i))
		}
	}
	out.Runs = functions.ConvertAll(w.finishedJobs(), func(j job) Run { return w.done[j] })
	return out, nil
}

// samples is the number of points of a run over time.
const samples = 240

type studyRun struct {
	s      *Study
	future future     // for policies that read it
	mu     sync.Mutex // guards the fields below
	done   map[job]Run
	at     map[job]simulate.Progress
	runs   int
}

func (r *studyRun) runJobs(ctx context.Context, jobs []job) error {
	r.runs += len(jobs)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(max(0, r.s.Parallel), runtime.GOMAXPROCS(0)))
	for _, j := range jobs {
		g.Go(func() error { return r.one(ctx, j) })
	}
	return g.Wait()
}

func (r *studyRun) one(ctx context.Context, j job) error {
	s, p := r.s, r.s.Policies[j.policy]
	on := s.Fleet
	if j.gpus > 0 {
		on = on.WithGPUs(j.gpus)
	}
	c := simulate.Config{
		Fleet: on, Functions: p.models(s.Models), Teams: s.Teams, Sizes: s.Sizes, Engines: s.Engines, Requests: s.Trace,
		Policy: p.schedule(), Name: p.Text, Seed: s.Seed,
		// Learning does not affect a policy that ignores forecasts.
		Foresight: &foresight.Options{StartAhead: p.Prewarm, Budget: s.Budget, Teams: min(1, int(s.Budget))},
		Sample:    max(s.Span/samples, time.Second), Progress: func(now simulate.Progress) { r.progress(j, now) },
	}
	if p.Future {
		c.Next = r.future.next
	}
	began := time.Now()
	result, err := simulate.Run(ctx, c)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.done[j] = Run{Policy: p, Result: result, Took: time.Since(began)}
	r.mu.Unlock()
	r.progress(j, simulate.Progress{Requests: s.Requests, Cold: result.Cold, At: math.MaxInt64})
	return nil
}

func (r *studyRun) progress(j job, now simulate.Progress) {
	if r.s.Progress == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[j] = now
	p := Progress{Done: len(r.done), Runs: r.runs, At: math.MaxInt64}
	sum := 0.0
	for _, a := range r.at {
		p.Cold += a.Cold
		if r.s.Requests > 0 {
			sum += min(1, float64(a.Requests)/float64(r.s.Requests))
		}
		p.At = min(p.At, a.At)
	}
	p.Share = sum / float64(max(r.runs, 1))
	r.s.Progress(p)
}

func (r *studyRun) finishedJobs() []job {
	return slices.SortedFunc(maps.Keys(r.done), func(a, b job) int {
		return cmp.Or(a.policy-b.policy, a.gpus-b.gpus)
	})
}

// gap returns the sizes between which the goal is reached: every tried size from high up
// reaches it. high is 0 if none does.
func (r *studyRun) gap(policy int) (low, high int) {
	low = r.s.Sizing.Low - 1
	for _, j := range r.finishedJobs() {
		if j.policy != policy {
			continue
		}
		result := r.done[j]
		// with at most 1 % of its requests refused for lack of room
		if result.Answered > 0 && result.TTFT.P99 <= r.s.Sizing.Goal.Seconds() && result.AllRefused()*100 <= result.Requests {
			high = cmp.Or(high, j.gpus)
		} else {
			low, high = j.gpus, 0
		}
	}
	return low, high
}

// narrowSizes bisects the gaps until each is one GPU wide.
func (r *studyRun) narrowSizes(ctx context.Context) error {
	for {
		var jobs []job
		for i := range r.s.Policies {
			if low, high := r.gap(i); high > 0 && high-low > 1 {
				jobs = append(jobs, job{i, (low + high) / 2})
			}
		}
		if len(jobs) == 0 {
			return nil
		}
		if err := r.runJobs(ctx, jobs); err != nil {
			return err
		}
	}
}

func (r *studyRun) need(policy int) Need {
	n := Need{Policy: r.s.Policies[policy].Text}
	low, high := r.gap(policy)
	if high == 0 {
		n.P99 = r.done[job{policy, r.s.Sizing.High}].TTFT.P99
		return n
	}
	n.GPUs, n.P99 = high, r.done[job{policy, high}].TTFT.P99
	if result, ok := r.done[job{policy, low}]; ok && low == high-1 {
		n.Below = result.TTFT.P99
	}
	return n
}

// Sentence states how many GPUs a goal needs.
func (n Need) Sentence(goal time.Duration, s *Sizing) string {
	g := Seconds(goal.Seconds())
	if n.GPUs == 0 {
		return fmt.Sprintf("%s: not even %s give 99 of 100 requests their first token within %s (p99 %s).", n.Policy,
			functions.GPUCount(s.High), g, Seconds(n.P99))
	}
	verb := "are"
	if n.GPUs == 1 {
		verb = "is"
	}
	text := fmt.Sprintf("%s: %s %s needed for 99 of 100 requests to have their first token within %s (p99 %s",
		n.Policy, functions.GPUCount(n.GPUs), verb, g, Seconds(n.P99))
	if n.Below > 0 {
		text += fmt.Sprintf("; with %d it is %s", n.GPUs-1, Seconds(n.Below))
	} else if n.GPUs == s.Low {
		text += "; fewer were not tried"
	}
	return text + ")."
}
