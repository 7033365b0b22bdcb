package ember

import (
	"math"
	"math/rand/v2"
)

type sampling struct {
	temperature float64 // below 1e-5: the most likely token
	topP        float64 // 1: all
	topK        int     // 0 or -1: all
	minP        float64 // 0: all
	presence    float64
	frequency   float64
	repetition  float64 // 1: none
	bias        map[int]float64
}

const greedyBelow = 1e-5

type choice struct {
	id int
	p  float64
}

// sampler samples the tokens of one sequence. It is owned by the loop.
type sampler struct {
	sampling
	rng    *rand.Rand
	counts map[int]int // of tokens generated; only with a penalty
	seen   map[int]bool
	heap   []choice
}

func newSampler(s sampling, seed uint64, prompt []int) *sampler {
	x := &sampler{sampling: s, rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	if s.presence != 0 || s.frequency != 0 || s.repetition != 1 {
		x.counts = map[int]int{}
	}
	if s.repetition != 1 {
		x.seen = map[int]bool{}
		for _, id := range prompt {
			x.seen[id] = true
		}
	}
	return x
}

// adjusts reports whether next changes the scores.
func (s *sampler) adjusts() bool { return s.counts != nil || s.seen != nil || len(s.bias) > 0 }

// adjust applies penalties and biases to the scores, in place.
func (s *sampler) adjust(l []float32) {
	if s.repetition != 1 {
		r := float32(s.repetition)
		for id := range s.seen {
			if l[id] > 0 {
				l[id] /= r
			} else {
				l[id] *= r
			}
		}
	}
	for id, n := range s.counts {
		l[id] -= float32(s.presence + s.frequency*float64(n))
	}
	for id, b := range s.bias {
		l[id] += float32(b)
	}
}

// next chooses a token. It may change l.
func (s *sampler) next(l []float32) int {
	s.adjust(l)
	id := s.choose(l)
	if s.counts != nil {
		s.counts[id]++
	}
	if s.seen != nil {
		s.seen[id] = true
	}
	return id
}

func argmax(l []float32) int {
	best := 0
	for i, v := range l {
		if v > l[best] {
			best = i
		}
	}
	return best
}

func (s *sampler) choose(l []float32) int {
	best := argmax(l)
	if s.temperature < greedyBelow {
		return best
	}
	top, total := float64(l[best]), 0.0
	h := s.heap[:0]
	if cap(h) < len(l) {
		h = make([]choice, 0, len(l))
	}
	for id, v := range l {
		p := math.Exp((float64(v) - top) / s.temperature)
		if p < s.minP || p == 0 {
			continue
		}
		total += p
		h = append(h, choice{id, p})
	}
	s.heap = h
	if s.topK > 0 && s.topK < len(h) || s.topP < 1 {
		h, total = s.nucleus(h, total)
	}
	u := s.rng.Float64() * total
	for _, c := range h {
		if u -= c.p; u < 0 {
			return c.id
		}
	}
	return h[len(h)-1].id
}

// nucleus returns the top_k most likely choices, and of these the fewest that together
// reach top_p. It uses a heap, since few are taken.
func (s *sampler) nucleus(h []choice, total float64) ([]choice, float64) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		siftDown(h, i)
	}
	k, all := len(h), true
	if s.topK > 0 && s.topK < k {
		k, all = s.topK, false
	}
	taken, sum := make([]choice, 0, min(k, 64)), 0.0
	limit := math.Inf(1)
	if all {
		limit = s.topP * total
	}
	for len(taken) < k && sum < limit {
		c := h[0]
		taken, sum = append(taken, c), sum+c.p
		h[0] = h[len(h)-1]
		h = h[:len(h)-1]
		siftDown(h, 0)
	}
	if !all && s.topP < 1 { // top_p applies after top_k
		limit, part := s.topP*sum, 0.0
		for i, c := range taken {
			if part += c.p; part >= limit {
				return taken[:i+1], part
			}
		}
	}
	return taken, sum
}

func siftDown(h []choice, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && moreLikely(h[c+1], h[c]) {
			c++
		}
		if !moreLikely(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// moreLikely orders by weight, then by id, so that a seed reproduces an answer.
func moreLikely(a, b choice) bool { return a.p > b.p || a.p == b.p && a.id < b.id }

// scored is the log probability of a token and of the best alternatives.
type scored struct {
	id      int
	logprob float64
	top     []choice // p is the logarithm; the best first
}

// logprobs scores a token by the model's own scores, before temperature and
// penalties, as OpenAI and vLLM report it.
func logprobs(l []float32, n int) (norm float64, top []choice) {
	best := argmax(l)
	var sum float64
	for _, v := range l {
		sum += math.Exp(float64(v - l[best]))
	}
	norm = float64(l[best]) + math.Log(sum)
	for id, v := range l {
		if n == 0 {
			break
		}
		if len(top) == n && float64(v) <= top[n-1].p {
			continue
		}
		if len(top) < n {
			top = append(top, choice{})
		}
		i := len(top) - 1
		for i > 0 && top[i-1].p < float64(v) {
			top[i] = top[i-1]
			i--
		}
		top[i] = choice{id, float64(v)}
	}
	for i := range top {
		top[i].p -= norm
	}
	return norm, top
}
