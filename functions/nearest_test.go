package functions

import (
	"math/rand/v2"
	"testing"
)

// TestDistanceAgainstPlain: the bounded distance is that of the whole table of optimal string
// alignment, in which neighbours may be swapped.
func TestDistanceAgainstPlain(t *testing.T) {
	plain := func(a, b string) int {
		d := make([][]int, len(a)+1)
		for i := range d {
			d[i] = make([]int, len(b)+1)
			for j := range d[i] {
				switch {
				case i == 0 || j == 0:
					d[i][j] = i + j
				case a[i-1] == b[j-1]:
					d[i][j] = d[i-1][j-1]
				default:
					d[i][j] = 1 + min(d[i-1][j-1], d[i-1][j], d[i][j-1])
				}
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], d[i-2][j-2]+1)
				}
			}
		}
		return d[len(a)][len(b)]
	}
	r := rand.New(rand.NewPCG(3, 3))
	randomWord := func() string {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = "abc"[r.IntN(3)]
		}
		return string(b)
	}
	for range 20000 {
		a, b := randomWord(), randomWord()
		want := plain(a, b)
		if got := Distance(a, b, 3); got != want && (want <= 3 || got <= 3) {
			t.Fatalf("%q %q: %d, want %d", a, b, got, want)
		}
	}
}
