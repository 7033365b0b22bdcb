//go:build !amd64

package kernel

func dotBF16(w []uint16, x []float32) float32                       { return genericDotBF16(w, x) }
func dotF32(w, x []float32) float32                                 { return genericDotF32(w, x) }
func oneRowBF16(o *[Four]float32, w []uint16, xs []float32)         { genericOneRowBF16(o, w, xs) }
func fourRowsBF16(o *[Four]float32, w []uint16, x []float32)        { genericFourRowsBF16(o, w, x) }
func fourRowsF32(o *[Four]float32, r []float32, s int, x []float32) { genericFourRowsF32(o, r, s, x) }
func tileBF16(o *[Four * Four]float32, w []uint16, xs []float32)    { genericTileBF16(o, w, xs) }
func tileF32(o *[Four * Four]float32, w, xs []float32)              { genericTileF32(o, w, xs) }
func fourWeightsF32(o *[Four]float32, w, x []float32)               { genericFourRowsF32(o, w, len(x), x) }
func addScaled(y []float32, a float32, x []float32)                 { genericAxpy(y, a, x) }

// Name says which bodies this machine runs.
func Name() string { return "go" }
