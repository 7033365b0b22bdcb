package simulate

import (
	"slices"
	"strings"
	"time"
)

// Result summarises a run; it keeps no single request.
type Result struct {
	Policy    string    `json:"policy"`
	GPUs      int       `json:"gpus"`
	Requests  int64     `json:"requests"`
	Cold      int64     `json:"cold"` // found no READY replica and waited for one
	ColdShare float64   `json:"cold_share"`
	TTFT      Quantiles `json:"ttft_seconds"` // from arrival to first token, of answered requests
	GPUHours  GPUHours  `json:"gpu_hours"`
	Evictions int64     `json:"evictions"` // caused by another function's demand
	Teams     []Team    `json:"teams"`

	TTFTWarm Quantiles `json:"ttft_warm_seconds"`
	TTFTCold Quantiles `json:"ttft_cold_seconds"`
	Wait     Quantiles `json:"wait_seconds"` // in the queue, of answered requests
	WaitCold Quantiles `json:"wait_cold_seconds"`
	// Thrash counts starts less than ThrashWithin after the function's eviction.
	Thrash int64 `json:"thrash"`
	Ends
	StartCounts
	Staged     float64      `json:"staged_gib"` // bytes brought into stores
	Seconds    float64      `json:"seconds"`    // simulated
	Impossible []Impossible `json:"impossible,omitempty"`
	// Skipped counts requests for impossible models, which are not in Requests.
	Skipped int64 `json:"skipped,omitempty"`
	Turns   int64 `json:"turns"`  // of the orchestrator
	Events  int64 `json:"events"` // of the clock

	Samples   []Sample `json:"-"` // GPU use over time, if Config.Sample is set
	TTFTSteps []Step   `json:"-"` // distribution of the time to first token
}

// Ends counts the requests by how they ended; the sum is Result.Requests.
type Ends struct {
	Answered   int64            `json:"answered"`
	Broken     int64            `json:"broken"`               // after the first token
	Left       int64            `json:"left"`                 // the client disconnected
	Refused    map[string]int64 `json:"refused"`              // by code
	Unfinished int64            `json:"unfinished,omitempty"` // an hour after the last arrival
}

// AllRefused is the number of refused requests.
func (e *Ends) AllRefused() (n int64) {
	for _, k := range e.Refused {
		n += k
	}
	return n
}

// StartCounts counts the starts.
type StartCounts struct {
	Starts     int64 `json:"starts"` // cold starts that reached READY, wake-ups included
	WakeUps    int64 `json:"rises"`
	StartsLost int64 `json:"starts_lost"` // failed or cancelled
}

// GPUHours splits the hours of all GPUs: the sum is GPUs times the simulated time. A
// model that uses a fraction of a GPU's memory holds that fraction of its hours.
//
//   - busy: held by a READY or draining replica with a request in flight;
//   - idle: held by a READY replica with none;
//   - loading: held from the load command, or a sleeping replica's wake-up,
//     until READY;
//   - wasted: all time of a replica that never served a request, and the time
//     others took to end or to fall asleep;
//   - free: held by no replica.
type GPUHours struct {
	Busy    float64 `json:"busy"`
	Idle    float64 `json:"idle"`
	Loading float64 `json:"loading"`
	Wasted  float64 `json:"wasted"`
	Free    float64 `json:"free"`
}

// Team is one team's part of a run.
type Team struct {
	Name     string  `json:"team"`
	Requests int64   `json:"requests"`
	Cold     int64   `json:"cold"`
	WaitP50  float64 `json:"wait_p50_seconds"`
	WaitP99  float64 `json:"wait_p99_seconds"`
	WaitMax  float64 `json:"wait_max_seconds"`
	GPUHours float64 `json:"gpu_hours"` // held by its functions
	Refused  int64   `json:"refused"`
	// Inflicted evictions hit other teams; Suffered ones are caused by them.
	Inflicted int64 `json:"evictions_inflicted"`
	Suffered  int64 `json:"evictions_suffered"`
}

// ThrashWithin is the longest time from an eviction to a start that counts as thrash.
const ThrashWithin = time.Minute

// tally holds the counters of a run in progress.
type tally struct {
	Result
	staged                                   float64 // bytes
	ttft, warmTTFT, coldTTFT, wait, coldWait histogram
	refusedForSpace                          int64 // commands refused for lack of room: the orchestrator believed they would fit
}

type team struct {
	Team
	wait histogram
	held GPUHours // in seconds
}

// Result returns the result of the run so far.
func (s *State) Result() Result {
	t := &s.tally
	r := t.Result
	r.Policy, r.GPUs, r.Impossible, r.Teams = s.c.Name, s.c.Fleet.GPUs(), s.catalog.impossible, []Team{}
	r.TTFT, r.TTFTWarm, r.TTFTCold = t.ttft.quantiles(), t.warmTTFT.quantiles(), t.coldTTFT.quantiles()
	r.Wait, r.WaitCold = t.wait.quantiles(), t.coldWait.quantiles()
	r.Staged, r.Seconds, r.Unfinished = round(t.staged/(1<<30)), round(s.clock.now.Seconds()), int64(len(s.traffic.active))
	if r.Requests > 0 {
		r.ColdShare = round(float64(r.Cold) / float64(r.Requests))
	}
	live := map[*team]GPUHours{} // of running replicas, in seconds
	for _, n := range s.nodes {
		for _, x := range n.reps {
			x.account()
			live[x.f.team] = live[x.f.team].plus(x.use.time(), 1)
		}
	}
	var sum GPUHours
	for _, m := range s.teams {
		h := m.held.plus(live[m], 1)
		sum = sum.plus(h, 1)
		m.GPUHours = round(h.sum() / 3600)
		if m.Requests == 0 && m.GPUHours == 0 && m.Inflicted+m.Suffered == 0 {
			continue
		}
		sec := func(q float64) float64 { return round(m.wait.quantile(q).Seconds()) }
		m.WaitP50, m.WaitP99, m.WaitMax = sec(0.5), sec(0.99), round(m.wait.max.Seconds())
		r.Teams = append(r.Teams, m.Team)
	}
	slices.SortFunc(r.Teams, func(a, b Team) int { return strings.Compare(a.Name, b.Name) })
	sum.Free = float64(r.GPUs)*s.clock.now.Seconds() - sum.sum()
	hours := func(seconds float64) float64 { return round(seconds / 3600) }
	r.GPUHours = GPUHours{hours(sum.Busy), hours(sum.Idle), hours(sum.Loading), hours(sum.Wasted), hours(sum.Free)}
	r.Samples, r.TTFTSteps = s.series.out, t.ttft.steps()
	return r
}

// plus returns the sum of h and times o, without Free.
func (h GPUHours) plus(o GPUHours, times float64) GPUHours {
	return GPUHours{Busy: h.Busy + times*o.Busy, Idle: h.Idle + times*o.Idle, Loading: h.Loading + times*o.Loading,
		Wasted: h.Wasted + times*o.Wasted}
}

func (h GPUHours) sum() float64 { return h.Busy + h.Idle + h.Loading + h.Wasted }
