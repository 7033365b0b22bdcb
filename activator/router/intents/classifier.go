package intents

import (
	_ "embed"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// Example is an utterance and its intent.
type Example struct {
	Text   string
	Intent string
}

// Classifier recognises intents. It is immutable and safe for concurrent use.
type Classifier struct {
	names       []string // of the classes; the last class, which has no name, is no intent
	weights     []uint64 // buckets rows of a byte for each class: the weight plus zeroWeight
	row         int      // words of a row
	bias        []float32
	scale       float32 // of weights
	calibration calibration
	extractors  sync.Pool
}

// background are texts of no intent, one a line: the examples of the last class.
//
//go:embed background.txt
var background string

// Fit fits a classifier. The order of the classes is that of their names.
func Fit(examples []Example) *Classifier {
	c := &Classifier{extractors: sync.Pool{New: func() any { return new(extractor) }}}
	for _, e := range examples {
		c.names = append(c.names, e.Intent)
	}
	slices.Sort(c.names)
	c.names = slices.Clone(slices.Compact(c.names))
	var x extractor
	var all []sample
	for _, e := range examples {
		class, _ := slices.BinarySearch(c.names, e.Intent)
		all = append(all, sample{slices.Clone(x.extract(e.Text)), class})
	}
	for line := range strings.Lines(background) {
		all = append(all, sample{slices.Clone(x.extract(line)), len(c.names)})
	}
	random := rand.New(rand.NewPCG(26, 1))
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	m := newModel(len(c.names)+1, all)
	c.calibration = m.fit()
	c.keep(m)
	return c
}

// keep stores the weights of a model in a byte each.
func (c *Classifier) keep(m *model) {
	largest := float32(0)
	for _, w := range m.weights {
		largest = max(largest, w, -w)
	}
	c.scale = largest / math.MaxInt8
	c.bias = m.bias
	c.row = (m.classes + 7) / 8
	c.weights = make([]uint64, buckets*c.row)
	for i, w := range m.weights {
		whole := 0.0
		if c.scale > 0 {
			whole = math.Round(float64(w / c.scale))
		}
		class := i % m.classes
		c.weights[i/m.classes*c.row+class/8] |= uint64(whole+zeroWeight) << (8 * (class % 8))
	}
}

const (
	zeroWeight = 128 // what the byte of a weight of 0 is

	lanes    = 0x00ff00ff00ff00ff // every second byte of a word, in 16 bits each
	laneRows = 0xffff / 0xff      // rows whose bytes add up in 16 bits
)

// addRows adds the rows of buckets to sum, eight classes at once.
func (c *Classifier) addRows(found []uint16, sum []int32) {
	even, odd := make([]uint64, c.row), make([]uint64, c.row)
	for k := range sum {
		sum[k] -= int32(zeroWeight * len(found))
	}
	for part := range slices.Chunk(found, laneRows) {
		clear(even)
		clear(odd)
		for ; len(part) >= 4; part = part[4:] {
			w0, w1 := c.weights[int(part[0])*c.row:][:c.row], c.weights[int(part[1])*c.row:][:c.row]
			w2, w3 := c.weights[int(part[2])*c.row:][:c.row], c.weights[int(part[3])*c.row:][:c.row]
			for k := range even {
				even[k] += w0[k]&lanes + w1[k]&lanes + w2[k]&lanes + w3[k]&lanes
				odd[k] += w0[k]>>8&lanes + w1[k]>>8&lanes + w2[k]>>8&lanes + w3[k]>>8&lanes
			}
		}
		for _, b := range part {
			for k, w := range c.weights[int(b)*c.row:][:c.row] {
				even[k] += w & lanes
				odd[k] += w >> 8 & lanes
			}
		}
		for k := range sum {
			from := even
			if k%2 == 1 {
				from = odd
			}
			sum[k] += int32(from[k/8] >> (8 * (k % 8 &^ 1)) & 0xffff)
		}
	}
}

// Classify returns the most likely intent of a text and the probability that it is right,
// 0 to 1; "" with the probability of that if the text most likely has none.
func (c *Classifier) Classify(text string) (intent string, confidence float64) {
	x := c.extractors.Get().(*extractor)
	defer c.extractors.Put(x)
	found := x.extract(text)
	sum := make([]int32, len(c.bias))
	c.addRows(found, sum)
	return c.decide(sum, len(found))
}

// decide returns the intent of a text by the sum of the rows of its buckets.
func (c *Classifier) decide(sum []int32, buckets int) (intent string, confidence float64) {
	scores := make([]float32, len(sum))
	by := c.scale * unitValue(buckets)
	for k := range scores {
		scores[k] = float32(sum[k])*by + c.bias[k]
	}
	best, confidence := c.calibration.best(scores)
	if best < len(c.names) {
		intent = c.names[best]
	}
	return intent, math.Round(confidence*1e4) / 1e4
}
