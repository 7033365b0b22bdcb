package router

import (
	"math"
	"math/rand/v2"

	"github.com/thaw-dev/thaw/activator/router/complexity"
)

const (
	fitRounds  = 60
	fitRate    = 1.5
	fitFavour  = 2.0  // a hard request that goes to a small model costs more than the reverse
	fitPenalty = 2e-5 // of the square of a weight, at each step
)

// group is the prompts of one label of a source.
type group struct {
	source *Source
	label  string
}

// Fit fits the weights of the complexity score by logistic regression: reasoning against
// general prompts and extraction, of the sources that are not held out. Every group
// counts alike, reasoning fitFavour times. Words that only one source has say what the source is about, so they have
// no weight.
func Fit(prompts []Prompt) []byte {
	type example struct {
		text  *complexity.Text
		group group
		want  float64
	}
	var list []example
	size := map[group]int{}
	seen := make([]map[*Source]bool, complexity.Features)
	for _, p := range prompts {
		if p.Source.Held || p.Label == Code {
			continue
		}
		e := example{text: complexity.Read(p.Text), group: group{p.Source, p.Label}}
		if p.Label == Reasoning {
			e.want = 1
		}
		list = append(list, e)
		size[e.group]++
		e.text.Each(func(feature int, _ float64) {
			if seen[feature] == nil {
				seen[feature] = map[*Source]bool{}
			}
			seen[feature][p.Source] = true
		})
	}
	weights := make([]float64, complexity.Features)
	bias := 0.0
	random := rand.New(rand.NewPCG(26, 3))
	mean := float64(len(list)) / float64(len(size))
	for round := range fitRounds {
		rate := fitRate * (1 - 0.9*float64(round)/fitRounds)
		for _, i := range random.Perm(len(list)) {
			e := &list[i]
			sum := bias
			e.text.Each(func(feature int, value float64) { sum += weights[feature] * value })
			step := rate * mean / float64(size[e.group]) * (e.want - 1/(1+math.Exp(-sum)))
			if e.want == 1 {
				step *= fitFavour
			}
			step = min(max(step, -3), 3)
			bias += 0.02 * step
			e.text.Each(func(feature int, value float64) {
				if len(seen[feature]) > 1 {
					weights[feature] += step * value
				}
				weights[feature] *= 1 - fitPenalty*rate*100
			})
		}
	}
	return complexity.Encode(weights, bias)
}
