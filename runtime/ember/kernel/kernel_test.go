package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/thaw-dev/thaw/testkit/tensors"
)

func vectors(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = rng.Float32()*4 - 2
	}
	return x
}

func weights(rng *rand.Rand, n int) []uint16 {
	w := make([]uint16, n)
	for i := range w {
		w[i] = tensors.ToBF16(rng.Float32()*2 - 1)
	}
	return w
}

func expectEqual(t *testing.T, name string, got, want float32) {
	t.Helper()
	if math.Float32bits(got) != math.Float32bits(want) {
		t.Fatalf("%s: %v (%#x), want %v (%#x)", name, got, math.Float32bits(got), want, math.Float32bits(want))
	}
}

// Both bodies must give the same bits at every length, also off the sixteens.
func TestKernelsAgree(t *testing.T) {
	t.Logf("bodies: %s", Name())
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []int{1, 7, 15, 16, 17, 31, 32, 48, 64, 100, 576, 1536} {
		w, f := weights(rng, 4*c), vectors(rng, 4*c+12)
		xs := vectors(rng, 4*c)
		var got, want [Four]float32

		got = oneRowBF16(w[:c], xs)
		genericOneRowBF16(&want, w[:c], xs)
		for j := range got {
			expectEqual(t, fmt.Sprint("one row bf16 ", c, j), got[j], want[j])
		}
		got = fourRowsBF16(w, xs[:c])
		genericFourRowsBF16(&want, w, xs[:c])
		for j := range got {
			expectEqual(t, fmt.Sprint("four rows bf16 ", c, j), got[j], want[j])
			expectEqual(t, fmt.Sprint("dot bf16 ", c, j), dotBF16(w[j*c:(j+1)*c], xs[:c]), want[j])
		}
		got = fourWeightsF32(f[:4*c], xs[:c])
		genericFourRowsF32(&want, f, c, xs[:c])
		for j := range got {
			expectEqual(t, fmt.Sprint("four weights f32 ", c, j), got[j], want[j])
		}
		fourRowsF32(&got, f, c+4, xs[:c])
		genericFourRowsF32(&want, f, c+4, xs[:c])
		for j := range got {
			expectEqual(t, fmt.Sprint("four rows f32 ", c, j), got[j], want[j])
			expectEqual(t, fmt.Sprint("dot f32 ", c, j), Dot(f[j*(c+4):j*(c+4)+c], xs[:c]), want[j])
		}
		var tile, tileWant [Four * Four]float32
		tile = tileBF16(w, xs)
		genericTileBF16(&tileWant, w, xs)
		for j := range tile {
			expectEqual(t, fmt.Sprint("tile bf16 ", c, j), tile[j], tileWant[j])
		}
		tile = tileF32(f[:4*c], xs)
		genericTileF32(&tileWant, f[:4*c], xs)
		for j := range tile {
			expectEqual(t, fmt.Sprint("tile f32 ", c, j), tile[j], tileWant[j])
		}
		y1 := append([]float32(nil), f[:c]...)
		y2 := append([]float32(nil), f[:c]...)
		Add(y1, 0.37, xs[:c])
		genericAxpy(y2, 0.37, xs[:c])
		for j := range y1 {
			expectEqual(t, fmt.Sprint("add ", c, j), y1[j], y2[j])
		}
	}
}

// A vector's result must not depend on how many others share the pass, and must be
// near the truth.
func TestBatchDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const rows, cols = 37, 100
	w := weights(rng, rows*cols)
	f := make([]float32, len(w))
	for i := range w {
		f[i] = FromBF16(w[i])
	}
	for n := 1; n <= 11; n++ {
		x := vectors(rng, n*cols)
		a, b, one := make([]float32, n*rows), make([]float32, n*rows), make([]float32, rows)
		BF16(a, rows, w, x, cols, 0, 20, n)
		BF16(a, rows, w, x, cols, 20, rows, n)
		F32(b, rows, f, x, cols, 0, rows, n)
		for v := range n {
			BF16(one, rows, w, x[v*cols:], cols, 0, rows, 1)
			for r := range rows {
				expectEqual(t, "alone and together", a[v*rows+r], one[r])
				expectEqual(t, "bf16 and f32", a[v*rows+r], b[v*rows+r])
				var s float64
				for i := range cols {
					s += float64(f[r*cols+i]) * float64(x[v*cols+i])
				}
				if math.Abs(s-float64(one[r])) > 1e-4 {
					t.Fatalf("row %d vector %d: %v, want about %v", r, v, one[r], s)
				}
			}
		}
	}
}

func TestBF16Rounding(t *testing.T) {
	for _, c := range []struct {
		in   uint32
		want uint16
	}{
		{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
		{0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0, 0}, {0x80000000, 0x8000},
	} {
		if got := tensors.ToBF16(math.Float32frombits(c.in)); got != c.want {
			t.Errorf("%#x: %#x, want %#x", c.in, got, c.want)
		}
	}
	if n := FromBF16(tensors.ToBF16(math.Float32frombits(0x7f800001))); n == n {
		t.Error("NaN became a number")
	}
}

func BenchmarkAdmission(b *testing.B) {
	const rows, cols = 4096, 576
	rng := rand.New(rand.NewPCG(5, 6))
	w := weights(rng, rows*cols)
	for _, n := range []int{1, 2, 4, 16} {
		x, out := vectors(rng, n*cols), make([]float32, n*rows)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(rows * cols * 2)
			for b.Loop() {
				BF16(out, rows, w, x, cols, 0, rows, n)
			}
			b.ReportMetric(float64(n)*rows*cols*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
		})
	}
}
