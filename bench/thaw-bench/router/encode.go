package router

import (
	"encoding/binary"
	"math"

	"github.com/thaw-dev/thaw/activator/router/category"
)

// feature is a feature and its weights, before they are scaled.
type feature struct {
	hash    uint32
	weights [category.Categories]float64
}

// encode returns the file of a model; see [category.Decode].
func encode(features []feature, ofRanges [category.Ranges][category.Categories]float64) []byte {
	largest := 1e-9
	each := func(f func(w [category.Categories]float64)) {
		for _, x := range features {
			f(x.weights)
		}
		for _, w := range ofRanges {
			f(w)
		}
	}
	each(func(w [category.Categories]float64) {
		for _, x := range w {
			largest = max(largest, math.Abs(x))
		}
	})
	scale := largest / math.MaxInt8
	out := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(scale)))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(features)))
	i := 0
	each(func(w [category.Categories]float64) {
		if i < len(features) {
			out = binary.LittleEndian.AppendUint32(out, features[i].hash)
		}
		i++
		for _, x := range w {
			out = append(out, byte(int8(math.Round(x/scale))))
		}
	})
	return out
}
