package intents

import "math"

// calibration turns the scores of a text into the probability that its best class is
// right.
type calibration struct {
	temperature  float32 // factor of the scores before softmax
	slope, shift float64 // of the logit of the best class after it (Platt 1999)
}

// noneShare is how many of the texts that a Router sees have no intent, at least; among the
// examples there may be fewer.
const noneShare = 0.05

// prior is how much speaks for a slope of 1 and a shift of 0: few texts change them little.
const prior = 5

// calibrate fits a calibration. right are the classes of texts, and scores has a row for
// each of the texts.
func calibrate(right []int, scores []float32) calibration {
	c := calibration{1, 1, 0}
	if len(right) == 0 {
		return c
	}
	n, none := len(scores)/len(right), 1
	row := make([]float32, n)
	scoresOf := func(i int) []float32 { return scores[i*n:][:n] }
	least := math.Inf(1)
	for t := float32(1); t < 30; t *= 1.1 {
		loss := 0.0
		for i, class := range right {
			softmax(row, scoresOf(i), t)
			loss -= math.Log(max(float64(row[class]), 1e-6))
		}
		if loss < least {
			c.temperature, least = t, loss
		}
	}
	logits := make([]float64, len(right)) // of the best class
	hits := make([]bool, len(right))
	for i, class := range right {
		softmax(row, scoresOf(i), c.temperature)
		best := largest(row)
		logits[i], hits[i] = logit(row[best]), best == class
		if class == n-1 {
			none++
		}
	}
	weightOfNone := max(1, noneShare*float64(len(right))/float64(none))
	least = math.Inf(1)
	for slope := 0.3; slope <= 1.5; slope += 0.05 {
		for shift := -1.0; shift <= 1; shift += 0.1 {
			loss := prior * ((slope-1)*(slope-1) + shift*shift)
			for i, x := range logits { // squares: a logarithm is of the few texts that are labelled wrong
				miss := sigmoid(slope*x + shift)
				if hits[i] {
					miss = 1 - miss
				}
				if miss *= miss; right[i] == n-1 {
					miss *= weightOfNone
				}
				loss += miss
			}
			if loss < least {
				c.slope, c.shift, least = slope, shift, loss
			}
		}
	}
	return c
}

// best returns the best class by the scores of a text, and the probability that it is
// right. It changes scores.
func (c *calibration) best(scores []float32) (class int, confidence float64) {
	softmax(scores, scores, c.temperature)
	class = largest(scores)
	return class, sigmoid(c.slope*logit(scores[class]) + c.shift)
}

func largest(row []float32) (at int) {
	for k, p := range row {
		if p > row[at] {
			at = k
		}
	}
	return at
}

// logit is finite.
func logit(p float32) float64 {
	x := min(max(float64(p), 1e-4), 1-1e-4)
	return math.Log(x / (1 - x))
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softmax sets row to the softmax of the scores times t.
func softmax(row, scores []float32, t float32) {
	most := scores[largest(scores)]
	sum := float32(0)
	for k, s := range scores {
		row[k] = 0
		if d := t * (s - most); d > -20 {
			row[k] = float32(math.Exp(float64(d)))
			sum += row[k]
		}
	}
	for k := range row {
		row[k] /= sum
	}
}
