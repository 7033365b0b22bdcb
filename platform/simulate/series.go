package simulate

import "time"

// Sample is the mean number of GPUs held since the previous sample, by use. Time that
// turns out to be wasted only later still counts as it looked then.
type Sample struct {
	At   float64  // seconds since the start of the run
	GPUs GPUHours // GPUs, not hours
}

// Step is one step of a distribution: Share of the requests took at most Seconds.
type Step struct{ Seconds, Share float64 }

// series takes samples during a run.
type series struct {
	every time.Duration
	sum   held // of all replicas, since the start of the run
	last  held // sum at the last sample
	out   []Sample
}

const sampling uint8 = 0

// sampler is the actor of a State's series.
type sampler State

func (s *sampler) generation() uint32 { return 0 }

func (s *sampler) act(uint8) {
	st := (*State)(s)
	for _, n := range st.nodes {
		for _, x := range n.reps {
			x.account()
		}
	}
	d := st.series.sum.minus(st.series.last)
	st.series.last = st.series.sum
	sec := st.series.every.Seconds()
	g := GPUHours{Busy: d.busy / sec, Idle: d.idle / sec, Loading: d.loading / sec, Wasted: d.wasted / sec}
	g.Free = float64(st.gpus) - d.sum()/sec
	st.series.out = append(st.series.out, Sample{At: st.clock.now.Seconds(), GPUs: g})
	st.clock.set(st.clock.now+st.series.every, s, sampling, 0)
}

func (h held) minus(o held) held {
	return held{h.busy - o.busy, h.idle - o.idle, h.loading - o.loading, h.wasted - o.wasted}
}

// steps returns the distribution.
func (h *histogram) steps() (out []Step) {
	var seen uint64
	for i, c := range h.counts {
		if c == 0 {
			continue
		}
		seen += uint64(c)
		out = append(out, Step{min(bucketMiddle(i), h.max).Seconds(), float64(seen) / float64(h.n)})
	}
	return out
}
