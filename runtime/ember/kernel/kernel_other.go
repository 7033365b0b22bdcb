//go:build !amd64

package kernel

func dotBF16(w []uint16, x []float32) float32                       { return genericDotBF16(w, x) }
func dotF32(w, x []float32) float32                                 { return genericDotF32(w, x) }
func fourRowsF32(o *[Four]float32, r []float32, s int, x []float32) { genericFourRowsF32(o, r, s, x) }
func addScaled(y []float32, a float32, x []float32)                 { genericAxpy(y, a, x) }

func oneRowBF16(w []uint16, xs []float32) (o [Four]float32)  { genericOneRowBF16(&o, w, xs); return o }
func fourRowsBF16(w []uint16, x []float32) (o [Four]float32) { genericFourRowsBF16(&o, w, x); return o }
func tileBF16(w []uint16, xs []float32) (o [Four * Four]float32) {
	genericTileBF16(&o, w, xs)
	return o
}
func tileF32(w, xs []float32) (o [Four * Four]float32) { genericTileF32(&o, w, xs); return o }
func fourWeightsF32(w, x []float32) (o [Four]float32)  { genericFourRowsF32(&o, w, len(x), x); return o }

// Name says which bodies this machine runs.
func Name() string { return "go" }
