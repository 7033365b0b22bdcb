package study

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Study is what is to be run. Fleet, Models, Trace and Policies are needed.
type Study struct {
	Fleet    *fleet.Fleet
	Models   []*functions.Model
	Teams    []*functions.Team
	Sizes    map[functions.Name]functions.Bytes // of checkpoints, where they are known
	Engines  map[functions.Engine]fleet.Engine  // times of engines that differ from the fleet's
	Trace    trace.Requests
	Requests int64         // about how many, for progress
	Span     time.Duration // about how long, for the pictures
	Policies []Policy
	Budget   time.Duration // of GPU time in an hour for starts ahead, of a team and of all; 0: the platform's own
	Sizing   *Sizing       // several sizes of the fleet; nil: as it is
	Seed     uint64
	Parallel int // runs at once; 0: a core each
	// Progress, if not nil, is called now and then, never twice at a time.
	Progress func(Progress)
}

// Sizing is how many GPUs are tried, and what for.
type Sizing struct {
	Low, High int
	Goal      time.Duration // of the p99 of the time to first token; 0 none
}

// Progress of a study.
type Progress struct {
	Done, Runs int           // runs
	Share      float64       // of the requests of all runs that are known of
	Cold       int64         // in all runs
	At         time.Duration // virtual, of the run that is furthest behind
}

// Run is one that has ended.
type Run struct {
	Policy Policy `json:"-"`
	simulate.Result
	Took time.Duration `json:"-"`
}

// Outcome is everything a study found: the runs by policy in the order asked
// for, and of one policy by GPUs.
type Outcome struct {
	Runs  []Run
	Needs []Need // by policy; none without a goal
	Goal  time.Duration
}

// Need is how many GPUs reach the goal under a policy.
type Need struct {
	Policy string  `json:"policy"`
	GPUs   int     `json:"gpus"` // 0: not within the sizes that were tried
	P99    float64 `json:"p99_seconds"`
	Below  float64 `json:"p99_with_one_less_seconds,omitempty"` // 0 unknown
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

// steps are the sizes the curve is drawn through: ten or fewer, each by about
// the same factor above the one before.
func (s *Sizing) steps() (out []int) {
	const most = 9
	for i := range most {
		n := int(math.Round(float64(s.Low) * math.Pow(float64(s.High)/float64(s.Low), float64(i)/(most-1))))
		if len(out) == 0 || n > out[len(out)-1] {
			out = append(out, n)
		}
	}
	return out
}

// job is one run to be done.
type job struct {
	policy int
	gpus   int // 0: the fleet as it is
}

// Run does every run and returns when all are over, or with the first error.
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
	w := &work{s: s, done: map[job]Run{}, at: map[job]simulate.Progress{}}
	if slices.ContainsFunc(s.Policies, func(p Policy) bool { return p.Future }) {
		var err error
		if w.future, err = foretell(s.Trace); err != nil {
			return nil, err
		}
	}
	if err := w.all(ctx, jobs); err != nil {
		return nil, err
	}
	out := &Outcome{}
	if s.Sizing != nil && s.Sizing.Goal > 0 {
		out.Goal = s.Sizing.Goal
		if err := w.narrow(ctx); err != nil {
			return nil, err
		}
		for i := range s.Policies {
			out.Needs = append(out.Needs, w.need(i))
		}
	}
	for _, j := range w.known() {
		out.Runs = append(out.Runs, w.done[j])
	}
	return out, nil
}

// work is the runs of a study.
type work struct {
	s      *Study
	future future     // where a policy is told it
	mu     sync.Mutex // the rest
	done   map[job]Run
	at     map[job]simulate.Progress
	runs   int
	err    error
}

// all does the jobs, so many at once.
func (w *work) all(ctx context.Context, jobs []job) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	n := w.s.Parallel
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	w.runs += len(jobs)
	next := make(chan job)
	var hands sync.WaitGroup
	for range min(n, len(jobs)) {
		hands.Go(func() {
			for j := range next {
				if err := w.one(ctx, j); err != nil {
					w.mu.Lock()
					if w.err == nil {
						w.err = err
					}
					w.mu.Unlock()
					stop()
					return
				}
			}
		})
	}
	for _, j := range jobs {
		select {
		case next <- j:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	hands.Wait()
	if w.err == nil {
		w.err = ctx.Err()
	}
	return w.err
}

func (w *work) one(ctx context.Context, j job) error {
	s, p := w.s, w.s.Policies[j.policy]
	on := s.Fleet
	if j.gpus > 0 {
		on = on.WithGPUs(j.gpus)
	}
	c := simulate.Config{
		Fleet: on, Functions: p.models(s.Models), Teams: s.Teams, Sizes: s.Sizes, Engines: s.Engines, Requests: s.Trace,
		Policy: p.schedule(), Name: p.Word, Seed: s.Seed,
		// What is learned changes nothing under a policy that does not look at it.
		Learn: true, Ahead: p.Prewarm, AheadBudget: s.Budget, AheadTeams: min(1, int(s.Budget)),
		Sample: s.sample(), Progress: func(now simulate.Progress) { w.progress(j, now) },
	}
	if p.Future {
		c.Next = w.future.next
	}
	began := time.Now()
	r, err := simulate.Run(ctx, c)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.done[j] = Run{Policy: p, Result: r, Took: time.Since(began)}
	w.mu.Unlock()
	w.progress(j, simulate.Progress{Requests: s.Requests, Cold: r.Cold, At: math.MaxInt64})
	return nil
}

// sample parts the run for its pictures.
func (s *Study) sample() time.Duration {
	const parts = 240
	return max(s.Span/parts, time.Second)
}

func (w *work) progress(j job, now simulate.Progress) {
	if w.s.Progress == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[j] = now
	p := Progress{Done: len(w.done), Runs: w.runs, At: math.MaxInt64}
	sum := 0.0
	for _, a := range w.at {
		p.Cold += a.Cold
		if w.s.Requests > 0 {
			sum += min(1, float64(a.Requests)/float64(w.s.Requests))
		}
		p.At = min(p.At, a.At)
	}
	p.Share = sum / float64(max(w.runs, 1))
	w.s.Progress(p)
}

// known are the jobs done, by policy and GPUs.
func (w *work) known() []job {
	var out []job
	for j := range w.done {
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b job) int {
		if a.policy != b.policy {
			return a.policy - b.policy
		}
		return a.gpus - b.gpus
	})
	return out
}

// good reports whether a run reaches the goal, and at most one request in a hundred was
// refused for lack of room.
func (w *work) good(r *Run) bool {
	refused := int64(0)
	for _, n := range r.Refused {
		refused += n
	}
	return r.Answered > 0 && r.TTFT.P99 <= w.s.Sizing.Goal.Seconds() && refused*100 <= r.Requests
}

// gap is between which sizes the goal is first reached for good: every size
// from high on reaches it. high is 0 where none does.
func (w *work) gap(policy int) (low, high int) {
	low = w.s.Sizing.Low - 1
	for _, j := range w.known() {
		if j.policy != policy {
			continue
		}
		r := w.done[j]
		if w.good(&r) {
			if high == 0 {
				high = j.gpus
			}
		} else {
			low, high = j.gpus, 0
		}
	}
	return low, high
}

// narrow halves the gaps until each is one GPU wide.
func (w *work) narrow(ctx context.Context) error {
	for {
		var jobs []job
		for i := range w.s.Policies {
			if low, high := w.gap(i); high > 0 && high-low > 1 {
				jobs = append(jobs, job{i, (low + high) / 2})
			}
		}
		if len(jobs) == 0 {
			return nil
		}
		if err := w.all(ctx, jobs); err != nil {
			return err
		}
	}
}

func (w *work) need(policy int) Need {
	n := Need{Policy: w.s.Policies[policy].Word}
	low, high := w.gap(policy)
	if high == 0 {
		r := w.done[job{policy, w.s.Sizing.High}]
		n.P99 = r.TTFT.P99
		return n
	}
	n.GPUs, n.P99 = high, w.done[job{policy, high}].TTFT.P99
	if r, ok := w.done[job{policy, low}]; ok && low == high-1 {
		n.Below = r.TTFT.P99
	}
	return n
}

// Sentence says how many GPUs a goal needs.
func (n Need) Sentence(goal time.Duration, s *Sizing) string {
	g := Seconds(goal.Seconds())
	if n.GPUs == 0 {
		return fmt.Sprintf("%s: not even %d GPUs give 99 of 100 requests their first token within %s (p99 %s).", n.Policy, s.High, g, Seconds(n.P99))
	}
	text := fmt.Sprintf("%s: %s for 99 of 100 requests to have their first token within %s (p99 %s", n.Policy, gpusNeeded(n.GPUs), g, Seconds(n.P99))
	if n.Below > 0 {
		text += fmt.Sprintf("; with %d it is %s", n.GPUs-1, Seconds(n.Below))
	} else if n.GPUs == s.Low {
		text += "; fewer were not tried"
	}
	return text + ")."
}

func gpusNeeded(n int) string {
	if n == 1 {
		return "1 GPU is needed"
	}
	return strconv.Itoa(n) + " GPUs are needed"
}
