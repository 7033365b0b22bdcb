package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/mint"
)

// The hand-written gradient must be the slope of the loss.
func TestGradient(t *testing.T) {
	s := mint.Shape{Hidden: 32, Inter: 48, Layers: 2, Heads: 2, KVHeads: 1, MaxPos: 16}
	rng := rand.New(rand.NewPCG(1, 2))
	n := newNet(s, 64, 16, rng)
	toks := make([]int, 17)
	for i := range toks {
		toks[i] = rng.IntN(64)
	}
	n.transpose()
	g := newGrads(n)
	n.learn(toks, g)
	for i, p := range n.params {
		// Along the gradient itself the slope is its length, far above the noise of
		// float32.
		var want float64
		for _, v := range g.of[i] {
			want += float64(v) * float64(v)
		}
		want = math.Sqrt(want)
		at := func(step float64) float64 {
			old := append([]float32(nil), p.w...)
			for j := range p.w {
				p.w[j] += float32(step * float64(g.of[i][j]) / want)
			}
			loss := n.learn(toks, nil)
			copy(p.w, old)
			return loss
		}
		const e = 1e-2
		got := (at(e) - at(-e)) / (2 * e)
		if math.Abs(got-want) > 0.02*want+1e-3 {
			t.Errorf("%s: slope %v, gradient %v", p.name, got, want)
		}
	}
}
