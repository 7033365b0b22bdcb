// Package category classifies a request's text as extraction, code, reasoning or general, and gives
// its complexity (the share of reasoning against general), with a linear model whose embedded
// weights it decodes; it trains no model and calls no language model. The features are hashed
// words, pairs of words and a few counts. The weights, in weights.bin, are written by thaw-bench
// router --fit; bench/thaw-bench/router names the public sources.
package category

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
)

// Category is a class of requests.
type Category int

const (
	Extraction Category = iota // parts of a text: names, dates, fields
	Code
	Reasoning // word problems, proofs, puzzles
	General

	Categories = 4
)

// Shares are the probabilities of the categories, together 1.
type Shares [Categories]float64

// Category returns the most probable one.
func (s Shares) Category() Category {
	best := Extraction
	for k, share := range s {
		if share > s[best] {
			best = Category(k)
		}
	}
	return best
}

// Complexity returns how likely a request needs a large model, 0 to 1: reasoning among what
// is reasoning or general.
func (s Shares) Complexity() float64 {
	return math.Round(1e4*s[Reasoning]/(s[Reasoning]+s[General])) / 1e4
}

// Judge returns the shares of a text by the shipped model.
func Judge(text []byte) Shares { return shipped().Judge(text) }

func (m *Model) Judge(text []byte) Shares {
	var t Text
	t.read(text)
	return m.judge(&t)
}

//go:embed weights.bin
var weights []byte

var shipped = sync.OnceValue(func() *Model {
	m, err := Decode(weights)
	if err != nil {
		panic(err)
	}
	return m
})

// Weights are those of one feature, for each category; multiplied by the scale of the model.
type Weights [Categories]int8

const (
	slotBits = 16
	maxKnown = 1 << (slotBits - 1)
	header   = 8
	entry    = 4 + Categories
)

// Model has the weights of the features that it knows. It is immutable.
type Model struct {
	scale  float64
	known  []known
	ranges [counts * ranges]Weights
	slots  [1 << slotBits]uint16 // of the place behind that in known; 0: none
}

type known struct {
	hash    uint32
	weights Weights
}

// Decode reads a model that `thaw-bench router --fit` wrote: the scale as a 32-bit float and the
// number of known features, then each with its hash and weights, then the weights of the ranges;
// little-endian.
func Decode(file []byte) (*Model, error) {
	m := new(Model)
	if len(file) < header {
		return nil, fmt.Errorf("category: %d bytes are no model", len(file))
	}
	n := int(binary.LittleEndian.Uint32(file[4:]))
	if n > maxKnown || len(file) != header+n*entry+len(m.ranges)*Categories {
		return nil, fmt.Errorf("category: a model of %d features has not %d bytes", n, len(file))
	}
	m.scale = float64(math.Float32frombits(binary.LittleEndian.Uint32(file)))
	m.known = make([]known, n)
	rest := file[header:]
	for i := range m.known {
		k := known{hash: binary.LittleEndian.Uint32(rest)}
		rest = rest[4:]
		rest = k.weights.decode(rest)
		m.known[i] = k
		at := k.hash >> (32 - slotBits)
		for m.slots[at] != 0 {
			at = (at + 1) % (1 << slotBits)
		}
		m.slots[at] = uint16(i + 1)
	}
	for i := range m.ranges {
		rest = m.ranges[i].decode(rest)
	}
	return m, nil
}

func (w *Weights) decode(from []byte) (rest []byte) {
	for k := range w {
		w[k] = int8(from[k])
	}
	return from[Categories:]
}

// find returns the place of a feature, -1 if it is not known.
func (m *Model) find(hash uint32) int {
	for at := hash >> (32 - slotBits); m.slots[at] != 0; at = (at + 1) % (1 << slotBits) {
		if i := int(m.slots[at]) - 1; m.known[i].hash == hash {
			return i
		}
	}
	return -1
}

// Weights of a feature by the part of the text that it is in: of so many features of a part
// each has this share of the root of their number.
var partWeights = [Parts]float64{Body: 0.7, First: 1, Last: 1}

// RangeValue is the value of the range of a count.
const RangeValue = 0.25

// judge adds up the weights of a text. A feature that a part has twice counts once.
func (m *Model) judge(t *Text) Shares {
	var sum [Categories]float64
	for part := range Parts {
		var seen [maxKnown / 64]uint64
		var of [Categories]int32
		n := 0
		for _, hash := range t.Features(part) {
			i := m.find(hash)
			if i < 0 || seen[i/64]>>(i%64)&1 != 0 {
				continue
			}
			seen[i/64] |= 1 << (i % 64)
			n++
			for k, w := range m.known[i].weights {
				of[k] += int32(w)
			}
		}
		for k := range sum {
			sum[k] += float64(of[k]) * PartValue(part, n)
		}
	}
	for i := range counts {
		for k, w := range m.ranges[t.Range(i)] {
			sum[k] += float64(w) * RangeValue
		}
	}
	for k := range sum {
		sum[k] *= m.scale
	}
	return SoftMax(sum)
}

// PartValue is the value of each of n features of a part.
func PartValue(part Part, n int) float64 { return partWeights[part] / math.Sqrt(float64(max(n, 1))) }

// SoftMax turns sums of weights into shares.
func SoftMax(sum [Categories]float64) (s Shares) {
	largest, all := max(sum[0], sum[1], sum[2], sum[3]), 0.0
	for k := range s {
		s[k] = math.Exp(sum[k] - largest)
		all += s[k]
	}
	for k := range s {
		s[k] /= all
	}
	return s
}
