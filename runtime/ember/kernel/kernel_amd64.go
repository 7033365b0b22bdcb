package kernel

import "golang.org/x/sys/cpu"

var (
	avx2   = cpu.X86.HasAVX2
	avx512 = cpu.X86.HasAVX512F && avx2
)

// Name says which bodies this machine runs.
func Name() string {
	switch {
	case avx512:
		return "avx512"
	case avx2:
		return "avx2"
	}
	return "go"
}

// In all of these n is a positive multiple of sixteen and strides are in bytes.

//go:noescape
func oneRowBF16AVX2(o *[Four]float32, w *uint16, x *float32, stride, n int)

//go:noescape
func fourRowsBF16AVX2(o *[Four]float32, w *uint16, stride int, x *float32, n int)

//go:noescape
func fourWeightsF32AVX2(o *[Four]float32, w *float32, stride int, x *float32, n int)

//go:noescape
func fourRowsF32AVX2(o *[Four]float32, w *float32, stride int, x *float32, n int)

//go:noescape
func tileBF16AVX512(o *[Four * Four]float32, w *uint16, wstride int, x *float32, xstride, n int)

//go:noescape
func tileF32AVX512(o *[Four * Four]float32, w *float32, wstride int, x *float32, xstride, n int)

// axpyAVX2 wants n to be a positive multiple of eight.
//
//go:noescape
func axpyAVX2(y *float32, a float32, x *float32, n int)

func dotBF16(w []uint16, x []float32) float32 {
	n := len(w) &^ 15
	if !avx2 || n == 0 {
		return genericDotBF16(w, x)
	}
	x = x[:len(w)]
	var o [Four]float32
	fourRowsBF16AVX2(&o, &w[0], 0, &x[0], n)
	s := o[0]
	for i := n; i < len(w); i++ {
		s += float32(FromBF16(w[i]) * x[i])
	}
	return s
}

func dotF32(w, x []float32) float32 {
	if !avx2 || len(w) == 0 {
		return genericDotF32(w, x)
	}
	var o [Four]float32
	fourRowsF32AVX2(&o, &w[0], 0, &x[0], len(w))
	return o[0]
}

func oneRowBF16(w []uint16, xs []float32) (o [Four]float32) {
	c := len(w)
	n := c &^ 15
	if !avx2 || n == 0 {
		genericOneRowBF16(&o, w, xs)
		return o
	}
	_ = xs[Four*c-1]
	oneRowBF16AVX2(&o, &w[0], &xs[0], 4*c, n)
	for i := n; i < c; i++ {
		for j := range o {
			o[j] += float32(FromBF16(w[i]) * xs[j*c+i])
		}
	}
	return o
}

func fourRowsBF16(w []uint16, x []float32) (o [Four]float32) {
	c := len(x)
	n := c &^ 15
	if !avx2 || n == 0 {
		genericFourRowsBF16(&o, w, x)
		return o
	}
	_ = w[Four*c-1]
	fourRowsBF16AVX2(&o, &w[0], 2*c, &x[0], n)
	for i := n; i < c; i++ {
		for j := range o {
			o[j] += float32(FromBF16(w[j*c+i]) * x[i])
		}
	}
	return o
}

func fourRowsF32(o *[Four]float32, rows []float32, stride int, x []float32) {
	c := len(x)
	n := c &^ 15
	if !avx2 || n == 0 {
		genericFourRowsF32(o, rows, stride, x)
		return
	}
	_ = rows[(Four-1)*stride+c-1]
	fourRowsF32AVX2(o, &rows[0], 4*stride, &x[0], n)
	for i := n; i < c; i++ {
		for j := range o {
			o[j] += float32(rows[j*stride+i] * x[i])
		}
	}
}

// fourWeightsF32 is fourRowsF32 for rows that lie in memory one behind the other.
func fourWeightsF32(w, x []float32) (o [Four]float32) {
	c := len(x)
	n := c &^ 15
	if !avx2 || n == 0 {
		genericFourRowsF32(&o, w, c, x)
		return o
	}
	_ = w[Four*c-1]
	fourWeightsF32AVX2(&o, &w[0], 4*c, &x[0], n)
	for i := n; i < c; i++ {
		for j := range o {
			o[j] += float32(w[j*c+i] * x[i])
		}
	}
	return o
}

func addScaled(y []float32, a float32, x []float32) {
	if !avx2 {
		genericAxpy(y, a, x)
		return
	}
	axpyAVX2(&y[0], a, &x[0], len(y))
}

func tileBF16(w []uint16, xs []float32) (o [Four * Four]float32) {
	c := len(w) / Four
	n := c &^ 15
	if !avx512 || n == 0 {
		for r := range Four {
			*(*[Four]float32)(o[r*Four:]) = oneRowBF16(w[r*c:(r+1)*c], xs)
		}
		return o
	}
	_ = xs[Four*c-1]
	tileBF16AVX512(&o, &w[0], 2*c, &xs[0], 4*c, n)
	for i := n; i < c; i++ {
		for k := range o {
			o[k] += float32(FromBF16(w[k/Four*c+i]) * xs[k%Four*c+i])
		}
	}
	return o
}

func tileF32(w, xs []float32) (o [Four * Four]float32) {
	c := len(w) / Four
	n := c &^ 15
	if !avx512 || n == 0 {
		var one [Four]float32
		for v := range Four {
			fourRowsF32(&one, w, c, xs[v*c:(v+1)*c])
			for r, s := range one {
				o[r*Four+v] = s
			}
		}
		return o
	}
	_ = xs[Four*c-1]
	tileF32AVX512(&o, &w[0], 4*c, &xs[0], 4*c, n)
	for i := n; i < c; i++ {
		for k := range o {
			o[k] += float32(w[k/Four*c+i] * xs[k%Four*c+i])
		}
	}
	return o
}
