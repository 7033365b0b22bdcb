package router

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator/router/category"
)

const (
	fitOrders       = 3 // the weights are the means of those of so many fits, each with an order of its own
	fitRounds       = 6
	fitRate         = 0.5
	fitFirst        = 0.1 // added to the root of the squared steps of a weight
	fitPenalty      = 1e-5
	fitMost         = 40    // prompts of a source
	fitRepositories = 3     // that a feature must be in: words of one source say what it is about
	fitFeatures     = 30000 // at most
	fitLargest      = 20    // weight of a prompt
	fitWrapped      = 0.3   // share of the prompts that are fitted on in a form of wraps.txt too
	fitLeftOut      = 0.45  // share of a prompt's features that a step leaves out, so that no few of them decide
	fitPartLeftOut  = 0.15  // share of its parts, and of its counts, that are left out whole
)

// group is the prompts of one label of a repository.
type group struct {
	repository string
	label      string
}

// example is a prompt as the model sees it.
type example struct {
	text   *category.Text
	group  group
	is     category.Category
	weight float64
	values []value
}

// value is the value of a feature, by its place among the weights. Those of counts are of the part [category.Parts].
type value struct {
	feature int
	value   float64
	part    category.Part
}

var categoryOf = map[string]category.Category{Extraction: category.Extraction, Code: category.Code, Reasoning: category.Reasoning, General: category.General}

// labelWeight is what a label counts: signs of code are found by other means too, and what is general or reasoning has most forms.
var labelWeight = map[string]float64{Extraction: 1, Code: 0.7, Reasoning: 1.3, General: 1.15}

// Fit fits the model of categories by logistic regression on the sources that are not held out and
// on the examples. Every repository of a label counts alike.
func Fit(prompts []Prompt) []byte {
	list := readExamples(prompts)
	features := chooseFeatures(list)
	at := map[uint32]int{}
	for i, hash := range features {
		at[hash] = i
	}
	for i := range list {
		list[i].setValues(at)
	}
	weights := make([][category.Categories]float64, len(features)+category.Ranges)
	for order := range fitOrders {
		for i, w := range descend(list, len(weights), rand.New(rand.NewPCG(26, uint64(3+order)))) {
			for k := range w {
				weights[i][k] += w[k] / fitOrders
			}
		}
	}
	known := make([]feature, len(features))
	for i, hash := range features {
		known[i] = feature{hash, [category.Categories]float64(weights[i])}
	}
	return encode(known, [category.Ranges][category.Categories]float64(weights[len(features):]))
}

// readExamples reads what is fitted on, and weighs it.
func readExamples(prompts []Prompt) (list []example) {
	used := map[*Source]map[string][]Prompt{}
	var order []*Source
	for _, p := range prompts {
		if p.Source.Held {
			continue
		}
		if used[p.Source] == nil {
			used[p.Source] = map[string][]Prompt{}
			order = append(order, p.Source)
		}
		used[p.Source][p.Label] = append(used[p.Source][p.Label], p)
	}
	w := newWrapper()
	one := func(p Prompt, text string) {
		list = append(list, example{text: category.Read([]byte(text)), group: group{p.Source.Repository, p.Label}, is: categoryOf[p.Label]})
	}
	add := func(p Prompt) {
		one(p, p.Text)
		if w.random.Float64() < fitWrapped {
			one(p, w.wrap(p.Text))
		}
	}
	for _, s := range order {
		for _, label := range Labels {
			all := used[s][label]
			for k := range min(fitMost, len(all)) {
				add(all[k*len(all)/min(fitMost, len(all))])
			}
		}
	}
	for _, p := range makeExamples(prompts) {
		add(p)
	}
	size, groups := map[group]int{}, map[string]int{}
	for _, e := range list {
		if size[e.group] == 0 {
			groups[e.group.label]++
		}
		size[e.group]++
	}
	for i := range list {
		e := &list[i]
		each := float64(len(list)) / category.Categories / float64(groups[e.group.label]) / float64(size[e.group])
		e.weight = labelWeight[e.group.label] * min(each, fitLargest)
	}
	return list
}

// chooseFeatures returns the hashes that most repositories have. All examples are one of these.
func chooseFeatures(list []example) []uint32 {
	in := map[uint32]map[string]bool{}
	for _, e := range list {
		for part := range category.Parts {
			for _, hash := range e.text.Features(part) {
				if in[hash] == nil {
					in[hash] = map[string]bool{}
				}
				repository := e.group.repository
				if strings.HasPrefix(repository, exampleRepository) {
					repository = exampleRepository // their passages are the same
				}
				in[hash][repository] = true
			}
		}
	}
	maps.DeleteFunc(in, func(_ uint32, repositories map[string]bool) bool { return len(repositories) < fitRepositories })
	features := slices.SortedFunc(maps.Keys(in), func(a, b uint32) int {
		return cmp.Or(len(in[b])-len(in[a]), cmp.Compare(a, b))
	})
	return features[:min(len(features), fitFeatures)]
}

// setValues sets the values of the features that the model knows, as the model weighs them.
func (e *example) setValues(at map[uint32]int) {
	for part := range category.Parts {
		places := map[int]bool{}
		for _, hash := range e.text.Features(part) {
			if i, ok := at[hash]; ok {
				places[i] = true
			}
		}
		for _, i := range slices.Sorted(maps.Keys(places)) {
			e.values = append(e.values, value{i, category.PartValue(part, len(places)), part})
		}
	}
	for c := range category.Counts {
		e.values = append(e.values, value{len(at) + e.text.Range(c), category.RangeValue, category.Parts})
	}
}

// leaveOut appends the values that a step uses.
func (e *example) leaveOut(random *rand.Rand, used []value) []value {
	var without [category.Parts + 1]bool
	for part := range without {
		without[part] = random.Float64() < fitPartLeftOut
	}
	for _, v := range e.values {
		if random.Float64() >= fitLeftOut && !without[v.part] {
			used = append(used, v)
		}
	}
	return used
}

// descend fits the weights, each with steps that become smaller with the sum of their squares. Each step leaves features out.
func descend(list []example, size int, random *rand.Rand) [][category.Categories]float64 {
	weights, squares := make([][category.Categories]float64, size), make([][category.Categories]float64, size)
	var values []value
	for round := range fitRounds {
		rate := fitRate * (1 - 0.9*float64(round)/fitRounds)
		for _, i := range random.Perm(len(list)) {
			e := &list[i]
			values = e.leaveOut(random, values[:0])
			var sum [category.Categories]float64
			for _, v := range values {
				for k := range sum {
					sum[k] += weights[v.feature][k] * v.value
				}
			}
			missed := category.SoftMax(sum)
			missed[e.is]--
			for _, v := range values {
				for k := range sum {
					w, q := &weights[v.feature][k], &squares[v.feature][k]
					slope := missed[k]*e.weight*v.value + fitPenalty**w
					*q += slope * slope
					*w -= rate * slope / (math.Sqrt(*q) + fitFirst)
				}
			}
		}
	}
	return weights
}
