package kernel

import "math"

// Four is the number of vectors in one pass over a weight row.
const Four = 4

// block is how many weight rows are walked for one group of four vectors before
// the next group: the group stays in the first cache level, the rows in the second.
const block = 16

// rowKernels are the products of rows and vectors of one type of weights: of four rows and four
// vectors, of one row and four vectors, of four rows and one vector, and of one row and one.
type rowKernels[W uint16 | float32] struct {
	tile     func(w []W, xs []float32) [Four * Four]float32
	oneRow   func(w []W, xs []float32) [Four]float32
	fourRows func(w []W, x []float32) [Four]float32
	dot      func(w []W, x []float32) float32
}

var (
	kernelsBF16 = rowKernels[uint16]{tileBF16, oneRowBF16, fourRowsBF16, dotBF16}
	kernelsF32  = rowKernels[float32]{tileF32, oneRowF32, fourWeightsF32, Dot}
)

// oneRowF32 uses that the product is symmetric: four vectors against one row.
func oneRowF32(w, xs []float32) (o [Four]float32) {
	fourRowsF32(&o, xs, len(w), w)
	return o
}

// BF16 multiplies rows lo..hi-1 of a row-major matrix of bfloat16 weights with n
// vectors. w has rows of cols elements, x holds the n vectors of cols elements one
// after another, and the product of row r and vector v goes to out[v*stride+r].
// Two and three vectors are faster when x is long enough for four.
func BF16(out []float32, stride int, w []uint16, x []float32, cols, lo, hi, n int) {
	kernelsBF16.multiply(out, stride, w, x, cols, lo, hi, n)
}

// F32 is [BF16] for weights of four bytes.
func F32(out []float32, stride int, w, x []float32, cols, lo, hi, n int) {
	kernelsF32.multiply(out, stride, w, x, cols, lo, hi, n)
}

func (k *rowKernels[W]) multiply(out []float32, stride int, w []W, x []float32, cols, lo, hi, n int) {
	if lo >= hi || n == 0 {
		return
	}
	_ = w[hi*cols-1]
	_ = x[n*cols-1]
	_ = out[(n-1)*stride+hi-1]
	for b := lo; b < hi; b += block {
		e := min(b+block, hi)
		v := 0
		for n-v > 1 {
			at, width := nextGroup(v, n, len(x)/cols)
			if width == 0 {
				break
			}
			xs := x[at*cols : (at+Four)*cols]
			r := b
			for ; r+Four <= e; r += Four {
				for i, s := range k.tile(w[r*cols:(r+Four)*cols], xs) {
					if j := i % Four; j < width {
						out[(at+j)*stride+r+i/Four] = s
					}
				}
			}
			for ; r < e; r++ {
				o := k.oneRow(w[r*cols:(r+1)*cols], xs)
				for j, s := range o[:width] {
					out[(at+j)*stride+r] = s
				}
			}
			v = at + width
		}
		for ; v < n; v++ {
			xv := x[v*cols : (v+1)*cols]
			r := b
			for ; r+Four <= e; r += Four {
				o := k.fourRows(w[r*cols:(r+Four)*cols], xv)
				copy(out[v*stride+r:], o[:])
			}
			for ; r < e; r++ {
				out[v*stride+r] = k.dot(w[r*cols:(r+1)*cols], xv)
			}
		}
	}
}

// nextGroup returns the next four vectors, of which the first width count. Two or three
// remaining ones are faster as four, with earlier ones (computed again) or with the
// memory behind the last one.
func nextGroup(v, n, remaining int) (at, width int) {
	switch {
	case v+Four <= n:
		return v, Four
	case n >= Four:
		return n - Four, Four
	case remaining >= Four:
		return 0, n
	}
	return 0, 0
}

// Rows computes out[t] = rows[t*stride : t*stride+len(x)] · x for every t.
func Rows(out, rows []float32, stride int, x []float32) {
	if len(out) == 0 {
		return
	}
	_ = rows[(len(out)-1)*stride+len(x)-1]
	var o [Four]float32
	t := 0
	for ; t+Four <= len(out); t += Four {
		fourRowsF32(&o, rows[t*stride:(t+Four-1)*stride+len(x)], stride, x)
		copy(out[t:], o[:])
	}
	for ; t < len(out); t++ {
		out[t] = Dot(rows[t*stride:t*stride+len(x)], x)
	}
}

// Dot returns a · b. Both have the same length.
func Dot(a, b []float32) float32 {
	b = b[:len(a)]
	n := len(a) &^ 15
	s := dotF32(a[:n], b[:n])
	for i := n; i < len(a); i++ {
		s += float32(a[i] * b[i])
	}
	return s
}

// Add adds a·x to y, element by element. x and y have the same length.
func Add(y []float32, a float32, x []float32) {
	x = x[:len(y)]
	n := len(y) &^ 7
	if n > 0 {
		addScaled(y[:n], a, x[:n])
	}
	for i := n; i < len(y); i++ {
		y[i] += float32(a * x[i])
	}
}

// FromBF16 widens one bfloat16.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }
