package main

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// TestGradient: the hand-written gradient is the slope of the loss.
func TestGradient(t *testing.T) {
	s := checkpoint.Shape{Hidden: 32, Inter: 48, Layers: 2, Heads: 2, KVHeads: 1, MaxPos: 16}
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
		// Along the gradient itself the slope is its length, well above the float32
		// noise.
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

// TestRun: the program writes a checkpoint that the engine's packages load, and the loss
// falls within a few steps.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	if err := run([]string{"-o", dir, "-steps", "3", "-batch", "2", "-length", "16", "-threads", "2"}, &log); err != nil {
		t.Fatal(err)
	}
	c, err := llama.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := llama.Open(dir, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if !strings.Contains(log.String(), "869504 parameters") {
		t.Error(log.String())
	}
	for _, args := range [][]string{{}, {"-o", dir, "-length", "15"}, {"-o", dir, "-batch", "0"}, {"-nope"}} {
		if run(args, io.Discard) == nil {
			t.Errorf("%v went through", args)
		}
	}
}

// TestDocumentsEnd: every dialogue ends its turns, or the model never learns to stop.
func TestDocumentsEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		d := document(r)
		if strings.Count(d, checkpoint.Start) != strings.Count(d, checkpoint.End) {
			t.Fatalf("%q", d)
		}
	}
	if a, b := learningRate(1, 0, 100), learningRate(1, 99, 100); a > 0.05 || b > 0.06 || learningRate(1, 50, 100) < 0.4 {
		t.Error(a, b)
	}
}

// TestAdapterRun: the program writes an adapter that the engine loads, and refuses what it
// cannot do.
func TestAdapterRun(t *testing.T) {
	const base = "../../functions/shipped/tiny"
	dir := t.TempDir()
	if err := run([]string{"adapter", "-base", base, "-name", "repair", "-o", dir, "-steps", "2", "-batch", "2", "-length", "16"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	c, err := llama.ReadConfig(base)
	if err != nil {
		t.Fatal(err)
	}
	a, err := llama.OpenAdapter(dir, &c, adapterRank)
	if err != nil || a.Rank() != adapterRank {
		t.Fatal(a, err)
	}
	for _, args := range [][]string{{"adapter"}, {"adapter", "-name", "nobody", "-o", dir}, {"adapter", "-name", "repair", "-o", dir, "-base", dir}, {"adapter", "-name", "repair", "-o", dir, "-length", "0"}} {
		if run(args, io.Discard) == nil {
			t.Errorf("%v went through", args)
		}
	}
}

// TestAdapterGradient: the gradients of A and B are the slopes of the loss.
func TestAdapterGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := newNet(checkpoint.Shape{Hidden: 32, Inter: 48, Layers: 1, Heads: 2, KVHeads: 1, MaxPos: 16}, 64, 16, rng)
	toks := make([]int, 17)
	for i := range toks {
		toks[i] = rng.IntN(64)
	}
	pairs := newPairs(n, rng)
	loss := func(g *grads) float64 {
		for _, l := range pairs {
			l.merge(n.params[l.of])
		}
		n.transpose()
		return n.learn(toks, g)
	}
	for _, l := range pairs {
		for i := range l.b.w {
			l.b.w[i] = float32(rng.NormFloat64() * 0.2)
		}
	}
	g := newGrads(n)
	loss(g)
	for _, l := range pairs {
		da, db := make([]float32, len(l.a.w)), make([]float32, len(l.b.w))
		l.gradients(g.of[l.of], da, db)
		for _, x := range []struct {
			p *param
			d []float32
		}{{l.a, da}, {l.b, db}} {
			var want float64
			for _, v := range x.d {
				want += float64(v) * float64(v)
			}
			want = math.Sqrt(want)
			at := func(step float64) float64 {
				old := append([]float32(nil), x.p.w...)
				for j := range x.p.w {
					x.p.w[j] += float32(step * float64(x.d[j]) / want)
				}
				defer copy(x.p.w, old)
				return loss(nil)
			}
			const e = 1e-2
			if got := (at(e) - at(-e)) / (2 * e); math.Abs(got-want) > 0.02*want+1e-3 {
				t.Errorf("%s: slope %v, gradient %v", x.p.name, got, want)
			}
		}
	}
}
