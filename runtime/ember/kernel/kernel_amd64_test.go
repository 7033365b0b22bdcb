package kernel

import (
	"math/rand/v2"
	"testing"
)

// A machine that can do more must also be right when it does less: whole products
// with AVX-512, with AVX2 alone and with neither have the same bits.
func TestEveryKernel(t *testing.T) {
	had2, had512 := avx2, avx512
	defer func() { avx2, avx512 = had2, had512 }()
	rng := rand.New(rand.NewPCG(7, 8))
	const rows = 23
	for _, cols := range []int{16, 50, 96} {
		for n := 1; n <= 9; n++ {
			w, f, x := weights(rng, rows*cols), vectors(rng, rows*cols), vectors(rng, (n+3)*cols)
			product := func(two, five bool) (a, b []float32) {
				avx2, avx512 = two && had2, five && had512
				a, b = make([]float32, n*rows), make([]float32, n*rows)
				BF16(a, rows, w, x, cols, 0, rows, n)
				F32(b, rows, f, x, cols, 0, rows, n)
				return a, b
			}
			a0, b0 := product(false, false)
			a1, b1 := product(true, false)
			a2, b2 := product(true, true)
			for i := range a0 {
				expectEqual(t, "bf16, avx2", a1[i], a0[i])
				expectEqual(t, "bf16, avx512", a2[i], a0[i])
				expectEqual(t, "f32, avx2", b1[i], b0[i])
				expectEqual(t, "f32, avx512", b2[i], b0[i])
			}
		}
	}
}
