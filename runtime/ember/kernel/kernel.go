package kernel

import "math"

// Four is the number of vectors in one pass over a weight row.
const Four = 4

// block is how many weight rows are walked for one group of four vectors before
// the next group: the group stays in the first cache level, the rows in the second.
const block = 16

// BF16 multiplies rows lo..hi-1 of a row-major matrix of bfloat16 weights with n
// vectors. w has rows of cols elements, x holds the n vectors of cols elements one
// after another, and the product of row r and vector v goes to out[v*stride+r].
// Two and three vectors are faster when x is long enough for four.
func BF16(out []float32, stride int, w []uint16, x []float32, cols, lo, hi, n int) {
	if lo >= hi || n == 0 {
		return
	}
	_ = w[hi*cols-1]
	_ = x[n*cols-1]
	_ = out[(n-1)*stride+hi-1]
	var o [Four]float32
	var t [Four * Four]float32
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
				tileBF16(&t, w[r*cols:(r+Four)*cols], xs)
				for k, s := range t {
					if j := k % Four; j < width {
						out[(at+j)*stride+r+k/Four] = s
					}
				}
			}
			for ; r < e; r++ {
				oneRowBF16(&o, w[r*cols:(r+1)*cols], xs)
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
				fourRowsBF16(&o, w[r*cols:(r+Four)*cols], xv)
				copy(out[v*stride+r:], o[:])
			}
			for ; r < e; r++ {
				out[v*stride+r] = dotBF16(w[r*cols:(r+1)*cols], xv)
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

// F32 is [BF16] for weights of four bytes.
func F32(out []float32, stride int, w, x []float32, cols, lo, hi, n int) {
	if lo >= hi || n == 0 {
		return
	}
	_ = w[hi*cols-1]
	_ = x[n*cols-1]
	_ = out[(n-1)*stride+hi-1]
	var o [Four]float32
	var t [Four * Four]float32
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
				tileF32(&t, w[r*cols:(r+Four)*cols], xs)
				for k, s := range t {
					if j := k % Four; j < width {
						out[(at+j)*stride+r+k/Four] = s
					}
				}
			}
			for ; r < e; r++ {
				// The product is symmetric: four vectors against one row.
				fourRowsF32(&o, xs, cols, w[r*cols:(r+1)*cols])
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
				fourWeightsF32(&o, w[r*cols:(r+Four)*cols], xv)
				copy(out[v*stride+r:], o[:])
			}
			for ; r < e; r++ {
				out[v*stride+r] = Dot(w[r*cols:(r+1)*cols], xv)
			}
		}
	}
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
