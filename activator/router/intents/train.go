package intents

import (
	"math"
	"math/rand/v2"
)

// sample is a text as buckets, with its class.
type sample struct {
	found []uint16
	class int
}

// model is a linear model while it is fitted: one support vector machine for each class
// against all others, with squared hinge loss. The dual problem is solved coordinate by
// coordinate (Hsieh et al., "A Dual Coordinate Descent Method for Large-scale Linear SVM",
// ICML 2008), which needs no rate, has one optimum, and goes on from any state after
// samples were added or removed.
type model struct {
	samples []sample
	slack   []float32 // of each class: how much its samples may be on the wrong side
	classes int
	weights []float32 // buckets rows of classes
	bias    []float32 // weights of one more feature, which is biasValue for each text, times that
	dual    []float32 // rows of classes: the share that a sample has in the weights

	random *rand.Rand
	moved  []int // of one step: the classes whose weights change
	change []float32
}

const (
	firstRounds = 6 // over the samples
	moreRounds  = 2 // after few of them changed

	// fewSamples is how many texts are scored one fold after the other; of more, the first
	// fold has enough.
	fewSamples = 3000
	folds      = 5

	biasValue  = 0.3  // small: few examples say little about how common an intent is
	negligible = 1e-3 // change of a dual variable
)

// newModel returns the model that knows nothing. Each class counts as much in all as the
// mean class, within limits, so that the background does not outweigh an intent of five
// examples.
func newModel(classes int, samples []sample) *model {
	m := &model{samples: samples, classes: classes, slack: make([]float32, classes), weights: make([]float32, buckets*classes),
		bias: make([]float32, classes),
		dual: make([]float32, len(samples)*classes), random: rand.New(rand.NewPCG(26, 2))}
	size := make([]int, classes)
	for _, s := range samples {
		size[s.class]++
	}
	for k, n := range size {
		m.slack[k] = 1 / (2 * min(max(float32(len(samples))/float32(classes*max(n, 1)), 0.1), 16))
	}
	return m
}

// fit fits the model to all samples, and returns the calibration by texts that the weights
// had not seen when they were scored.
func (m *model) fit() calibration {
	n := 1
	if len(m.samples) < fewSamples {
		n = folds
	}
	var scored []int
	var scores []float32
	for fold := range n {
		var inside, others []int
		for i := range m.samples {
			if i%folds == fold {
				m.remove(i)
				inside = append(inside, i)
			} else {
				others = append(others, i)
			}
		}
		rounds := moreRounds
		if fold == 0 {
			rounds = firstRounds
		}
		m.pass(others, rounds)
		for _, i := range inside {
			row := make([]float32, m.classes)
			m.score(m.samples[i].found, row)
			scored, scores = append(scored, m.samples[i].class), append(scores, row...)
		}
	}
	m.pass(m.random.Perm(len(m.samples)), moreRounds)
	return calibrate(scored, scores)
}

// pass improves the model by samples, some rounds.
func (m *model) pass(of []int, rounds int) {
	scores := make([]float32, m.classes)
	for range rounds {
		m.random.Shuffle(len(of), func(i, k int) { of[i], of[k] = of[k], of[i] })
		for _, i := range of {
			m.score(m.samples[i].found, scores)
			m.step(i, scores)
		}
	}
}

// step moves the dual variables of a sample to where they are best while all others stay.
func (m *model) step(i int, scores []float32) {
	s, slack := &m.samples[i], m.slack[m.samples[i].class]
	m.moved, m.change = m.moved[:0], m.change[:0]
	for k, score := range scores {
		sign := float32(-1)
		if k == s.class {
			sign = 1
		}
		old := m.dual[i*m.classes+k]
		by := max(old-(sign*score-1+slack*old)/(1+biasValue*biasValue+slack), 0) - old
		if by > negligible || by < -negligible {
			m.dual[i*m.classes+k] += by
			m.moved, m.change = append(m.moved, k), append(m.change, sign*by)
		}
	}
	m.move(s)
}

// remove takes a sample out of the weights.
func (m *model) remove(i int) {
	s := &m.samples[i]
	m.moved, m.change = m.moved[:0], m.change[:0]
	for k, d := range m.dual[i*m.classes:][:m.classes] {
		if k == s.class {
			d = -d
		}
		if d != 0 {
			m.moved, m.change = append(m.moved, k), append(m.change, d)
		}
	}
	clear(m.dual[i*m.classes:][:m.classes])
	m.move(s)
}

// move adds change of a sample's vector to the weights of the moved classes.
func (m *model) move(s *sample) {
	for i, k := range m.moved {
		m.bias[k] += m.change[i] * biasValue * biasValue
		m.change[i] *= unitValue(len(s.found))
	}
	for _, b := range s.found {
		row := m.weights[int(b)*m.classes:][:m.classes]
		for i, k := range m.moved {
			row[k] += m.change[i]
		}
	}
}

func (m *model) score(found []uint16, scores []float32) {
	clear(scores)
	n, by := len(scores), unitValue(len(found))
	for len(found) >= 4 {
		a, b := m.weights[int(found[0])*n:][:n], m.weights[int(found[1])*n:][:n]
		c, d := m.weights[int(found[2])*n:][:n], m.weights[int(found[3])*n:][:n]
		for k := range scores {
			scores[k] += a[k] + b[k] + c[k] + d[k]
		}
		found = found[4:]
	}
	for _, b := range found {
		for k, w := range m.weights[int(b)*n:][:n] {
			scores[k] += w
		}
	}
	for k := range scores {
		scores[k] = scores[k]*by + m.bias[k]
	}
}

// unitValue is the value of each of n features of a text: its vector has length 1.
func unitValue(n int) float32 { return float32(1 / math.Sqrt(float64(max(n, 1)))) }
