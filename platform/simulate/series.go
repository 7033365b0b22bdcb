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

type series struct {
	every time.Duration
	sum   GPUHours // in seconds, of all replicas, since the start of the run
	last  GPUHours // sum at the last sample
	out   []Sample
}

// sample takes a sample, again and again.
func (s *State) sample() {
	for _, n := range s.nodes {
		for _, x := range n.reps {
			x.account()
		}
	}
	g := GPUHours{}.plus(s.series.sum.plus(s.series.last, -1), 1/s.series.every.Seconds())
	g.Free = float64(s.c.Fleet.GPUs()) - g.sum()
	s.series.last = s.series.sum
	s.series.out = append(s.series.out, Sample{At: s.clock.now.Seconds(), GPUs: g})
	s.After(s.series.every, s.sample)
}

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
