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

// model is a linear model while it is fitted.
type model struct {
	classes int
	weights []float32 // buckets rows of classes
	bias    []float32

	moved  []int // of one step: the classes whose weights change
	change []float32
}

const (
	firstRate, lastRate = 8.0, 0.8

	// tiny gradients are not applied: those of most of 150 classes, most of the time.
	tiny = 0.004

	// Few examples are seen more often than many.
	samplesSeen          = 100_000
	minRounds, maxRounds = 5, 60

	fewSamples = 3000
)

// newModel returns the model that knows nothing.
func newModel(classes int) *model {
	return &model{classes: classes, weights: make([]float32, buckets*classes), bias: make([]float32, classes)}
}

// fit fits the model by stochastic gradient descent: rounds times over the samples, at a
// rate that falls from one value to another. Each class counts as much in all as the mean
// class, within limits, so that the background does not outweigh an intent of five
// examples.
func (m *model) fit(samples []sample, rounds int, from, to float64) {
	size := make([]int, m.classes)
	for _, s := range samples {
		size[s.class]++
	}
	mean := float64(len(samples)) / float64(m.classes)
	random := rand.New(rand.NewPCG(26, 2))
	order := random.Perm(len(samples))
	scores := make([]float32, m.classes)
	for round := range rounds {
		random.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		rate := from + (to-from)*float64(round)/float64(rounds)
		for _, i := range order {
			s := &samples[i]
			weight := min(max(mean/float64(size[s.class]), 0.25), 16)
			m.step(s, float32(rate*weight), scores)
		}
	}
}

// step moves the model along the gradient of one sample.
func (m *model) step(s *sample, speed float32, scores []float32) {
	m.score(s.found, scores)
	softmax(scores)
	scores[s.class]--
	by := speed * unitValue(len(s.found))
	m.moved, m.change = m.moved[:0], m.change[:0]
	for k, g := range scores {
		if g >= tiny || g <= -tiny {
			m.bias[k] -= speed * 0.01 * g
			m.moved, m.change = append(m.moved, k), append(m.change, by*g)
		}
	}
	for _, b := range s.found {
		row := m.weights[int(b)*m.classes:][:m.classes]
		for i, k := range m.moved {
			row[k] -= m.change[i]
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

// fitTemperature returns the factor of the scores under which the samples are most
// likely.
func (m *model) fitTemperature(samples []sample) float32 {
	best, least := float32(1), math.Inf(1)
	scores := make([]float32, m.classes)
	raw := make([]float32, 0, m.classes*len(samples))
	for _, s := range samples {
		m.score(s.found, scores)
		raw = append(raw, scores...)
	}
	for t := float32(0.3); t < 4; t *= 1.1 {
		loss := 0.0
		for i, s := range samples {
			for k := range scores {
				scores[k] = raw[i*m.classes+k] * t
			}
			softmax(scores)
			loss -= math.Log(max(float64(scores[s.class]), 1e-6))
		}
		if loss < least {
			best, least = t, loss
		}
	}
	return best
}

// unitValue is the value of each of n features of a text: its vector has length 1.
func unitValue(n int) float32 { return float32(1 / math.Sqrt(float64(max(n, 1)))) }

func softmax(scores []float32) {
	most := scores[0]
	for _, s := range scores {
		most = max(most, s)
	}
	sum := float32(0)
	for k, s := range scores {
		scores[k] = 0
		if d := s - most; d > -20 {
			scores[k] = float32(math.Exp(float64(d)))
			sum += scores[k]
		}
	}
	for k := range scores {
		scores[k] /= sum
	}
}
