package main

import "math"

// adam is AdamW: running means of gradients and of their squares.
type adam struct {
	m, v [][]float32
	n    int
}

func newAdam(ps []*param) *adam {
	a := &adam{}
	for _, p := range ps {
		a.m = append(a.m, make([]float32, len(p.w)))
		a.v = append(a.v, make([]float32, len(p.w)))
	}
	return a
}

const (
	beta1, beta2 = 0.9, 0.98
	decay        = 0.02
	clip         = 1.0
)

// step moves the weights by the mean of the gradients of a batch.
func (a *adam) step(ps []*param, batch []*grads, rate float64) {
	a.n++
	norm := 0.0
	sum := batch[0]
	for i := range ps {
		g := sum.of[i]
		for _, b := range batch[1:] {
			for j, v := range b.of[i] {
				g[j] += v
			}
		}
		for j := range g {
			g[j] /= float32(len(batch))
			norm += float64(g[j]) * float64(g[j])
		}
	}
	clipScale := float32(min(1, clip/(math.Sqrt(norm)+1e-9)))
	c1, c2 := 1-math.Pow(beta1, float64(a.n)), 1-math.Pow(beta2, float64(a.n))
	for i, p := range ps {
		m, v := a.m[i], a.v[i]
		wd := float32(0)
		if len(p.shape) == 2 {
			wd = float32(rate * decay)
		}
		for j, g := range sum.of[i] {
			g *= clipScale
			m[j] = beta1*m[j] + (1-beta1)*g
			v[j] = beta2*v[j] + (1-beta2)*g*g
			up := float64(m[j]) / c1 / (math.Sqrt(float64(v[j])/c2) + 1e-8)
			p.w[j] -= float32(rate*up) + wd*p.w[j]
		}
	}
}
