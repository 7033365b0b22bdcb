package main

import (
	"math"
	"math/rand/v2"
	"strings"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// param is one tensor; t is its transpose, kept for the backward pass.
type param struct {
	name  string
	shape []int
	w, t  []float32
}

type layerParams struct{ n1, n2, q, k, v, o, gate, up, down int }

// net is the model and its training state.
type net struct {
	checkpoint.Shape
	vocab, length int
	hd            int
	params        []*param
	embed, norm   int
	layers        []layerParams
	cos, sin      []float32
}

func newNet(s checkpoint.Shape, vocab, length int, rng *rand.Rand) *net {
	n := &net{Shape: s, vocab: vocab, length: length, hd: s.Hidden / s.Heads}
	at := map[string]int{}
	for i, t := range s.Tensors(vocab) {
		p := &param{name: t.Name, shape: t.Shape}
		size := 1
		for _, d := range t.Shape {
			size *= d
		}
		p.w = make([]float32, size)
		if len(t.Shape) == 2 {
			p.t = make([]float32, size)
			std := 0.7 / math.Sqrt(float64(t.Shape[1]))
			if strings.Contains(t.Name, "embed") {
				std = 0.05
			}
			for j := range p.w {
				p.w[j] = float32(rng.NormFloat64() * std)
			}
		} else {
			for j := range p.w {
				p.w[j] = 1
			}
		}
		n.params = append(n.params, p)
		at[t.Name] = i
	}
	n.embed, n.norm = at["model.embed_tokens.weight"], at["model.norm.weight"]
	for l := range s.Layers {
		of := func(name string) int { return at["model.layers."+string(rune('0'+l))+"."+name+".weight"] }
		n.layers = append(n.layers, layerParams{of("input_layernorm"), of("post_attention_layernorm"),
			of("self_attn.q_proj"), of("self_attn.k_proj"), of("self_attn.v_proj"), of("self_attn.o_proj"),
			of("mlp.gate_proj"), of("mlp.up_proj"), of("mlp.down_proj")})
	}
	for p := range length {
		for i := range n.hd / 2 {
			a := float64(p) * math.Pow(10000, -2*float64(i)/float64(n.hd))
			sin, cos := math.Sincos(a)
			n.cos, n.sin = append(n.cos, float32(cos)), append(n.sin, float32(sin))
		}
	}
	return n
}

func (n *net) size() (total int) {
	for _, p := range n.params {
		total += len(p.w)
	}
	return total
}

func (n *net) sources() (ts []safetensors.Source) {
	for _, p := range n.params {
		ts = append(ts, safetensors.Source{Name: p.name, Shape: p.shape, Data: p.w})
	}
	return ts
}

// transpose updates the transposes after a step.
func (n *net) transpose() {
	for _, p := range n.params {
		if p.t != nil {
			transposeInto(p.t, p.w, p.shape[0], p.shape[1])
		}
	}
}

func transposeInto(dst, src []float32, rows, cols int) {
	for r := range rows {
		for c := range cols {
			dst[c*rows+r] = src[r*cols+c]
		}
	}
}

// grads are the gradients of one sequence, one slice per param.
type grads struct{ of [][]float32 }

func newGrads(n *net) *grads {
	g := &grads{}
	for _, p := range n.params {
		g.of = append(g.of, make([]float32, len(p.w)))
	}
	return g
}

func (g *grads) zero() {
	for _, x := range g.of {
		clear(x)
	}
}

// forward computes y[t] = W x[t] for n.length vectors.
func (n *net) forward(i int, x []float32) []float32 {
	p := n.params[i]
	y := make([]float32, n.length*p.shape[0])
	kernel.F32(y, p.shape[0], p.w, x, p.shape[1], 0, p.shape[0], n.length)
	return y
}

// backward adds W^T dy to dx and dy x^T to the gradient of W.
func (n *net) backward(i int, g *grads, x, dy, dx []float32) {
	p, T := n.params[i], n.length
	R, C := p.shape[0], p.shape[1]
	tmp := make([]float32, T*C)
	kernel.F32(tmp, C, p.t, dy, R, 0, C, T)
	kernel.Add(dx, 1, tmp)
	xt, dt := make([]float32, C*T), make([]float32, R*T)
	transposeInto(xt, x, T, C)
	transposeInto(dt, dy, T, R)
	dw := make([]float32, R*C)
	kernel.F32(dw, C, xt, dt, T, 0, C, R)
	kernel.Add(g.of[i], 1, dw)
}

func (n *net) normalize(i int, x []float32) (y, inv []float32) {
	w, H := n.params[i].w, n.Hidden
	y, inv = make([]float32, len(x)), make([]float32, n.length)
	for t := range n.length {
		xt := x[t*H : (t+1)*H]
		r := float32(1 / math.Sqrt(float64(kernel.Dot(xt, xt))/float64(H)+1e-5))
		inv[t] = r
		for j, v := range xt {
			y[t*H+j] = v * r * w[j]
		}
	}
	return y, inv
}

// normalizeBack adds the gradient of normalize to dx.
func (n *net) normalizeBack(i int, g *grads, x, inv, dy, dx []float32) {
	w, gw, H := n.params[i].w, g.of[i], n.Hidden
	for t := range n.length {
		r, s := inv[t], float32(0)
		xt, dt := x[t*H:(t+1)*H], dy[t*H:(t+1)*H]
		for j := range xt {
			s += dt[j] * w[j] * xt[j]
			gw[j] += dt[j] * xt[j] * r
		}
		s *= r * r / float32(H)
		for j := range xt {
			dx[t*H+j] += r * (dt[j]*w[j] - xt[j]*s)
		}
	}
}

// turn rotates all heads of x by their positions; sign -1 inverts the rotation.
func (n *net) turn(x []float32, heads int, sign float32) {
	half := n.hd / 2
	for t := range n.length {
		for h := range heads {
			b := x[(t*heads+h)*n.hd:]
			for i := range half {
				c, s := n.cos[t*half+i], n.sin[t*half+i]*sign
				p, q := b[i], b[half+i]
				b[i], b[half+i] = p*c-q*s, q*c+p*s
			}
		}
	}
}

// activations are the values of one layer that the backward pass needs.
type activations struct {
	x, n1, i1, q, k, v, att, o, x2, n2, i2, gate, up, act []float32
}

// learn runs one sequence of length+1 tokens, adds its gradients to g (nil: loss only)
// and returns the mean loss of predicting each next token.
func (n *net) learn(toks []int, g *grads) float64 {
	T, H := n.length, n.Hidden
	x := make([]float32, T*H)
	for t := range T {
		copy(x[t*H:(t+1)*H], n.params[n.embed].w[toks[t]*H:])
	}
	ks := make([]activations, len(n.layers))
	for l := range n.layers {
		x = n.layerForward(l, &ks[l], x)
	}
	last, inv := n.normalize(n.norm, x)
	scores := n.forward(n.embed, last)
	loss := 0.0
	for t := range T {
		s := scores[t*n.vocab : (t+1)*n.vocab]
		top := s[0]
		for _, v := range s {
			top = max(top, v)
		}
		sum := 0.0
		for i, v := range s {
			e := math.Exp(float64(v - top))
			s[i] = float32(e)
			sum += e
		}
		want := toks[t+1]
		loss -= math.Log(float64(s[want]) / sum)
		for i := range s {
			s[i] *= float32(1 / sum / float64(T))
		}
		s[want] -= 1 / float32(T)
	}
	if g == nil {
		return loss / float64(T)
	}
	dlast, dx := make([]float32, T*H), make([]float32, T*H)
	n.backward(n.embed, g, last, scores, dlast)
	n.normalizeBack(n.norm, g, x, inv, dlast, dx)
	for l := len(n.layers) - 1; l >= 0; l-- {
		n.layerBackward(l, &ks[l], g, dx)
	}
	for t := range T {
		kernel.Add(g.of[n.embed][toks[t]*H:(toks[t]+1)*H], 1, dx[t*H:(t+1)*H])
	}
	return loss / float64(T)
}

func (n *net) layerForward(l int, k *activations, x []float32) []float32 {
	p, T, H, hd := n.layers[l], n.length, n.Hidden, n.hd
	kw := n.KVHeads * hd
	k.x = x
	k.n1, k.i1 = n.normalize(p.n1, x)
	k.q, k.k, k.v = n.forward(p.q, k.n1), n.forward(p.k, k.n1), n.forward(p.v, k.n1)
	n.turn(k.q, n.Heads, 1)
	n.turn(k.k, n.KVHeads, 1)
	k.att, k.o = make([]float32, n.Heads*T*T), make([]float32, T*H)
	scale := float32(1 / math.Sqrt(float64(hd)))
	for h := range n.Heads {
		at := h / (n.Heads / n.KVHeads) * hd
		for t := range T {
			a := k.att[(h*T+t)*T:][:t+1]
			kernel.Rows(a, k.k[at:], kw, k.q[t*H+h*hd:][:hd])
			top := float32(math.Inf(-1))
			for u := range a {
				a[u] *= scale
				top = max(top, a[u])
			}
			var sum float32
			for u := range a {
				a[u] = float32(math.Exp(float64(a[u] - top)))
				sum += a[u]
			}
			for u := range a {
				a[u] /= sum
				kernel.Add(k.o[t*H+h*hd:][:hd], a[u], k.v[u*kw+at:][:hd])
			}
		}
	}
	k.x2 = n.forward(p.o, k.o)
	kernel.Add(k.x2, 1, x)
	k.n2, k.i2 = n.normalize(p.n2, k.x2)
	k.gate, k.up = n.forward(p.gate, k.n2), n.forward(p.up, k.n2)
	k.act = make([]float32, len(k.gate))
	for i, v := range k.gate {
		k.act[i] = v / (1 + float32(math.Exp(float64(-v)))) * k.up[i]
	}
	y := n.forward(p.down, k.act)
	kernel.Add(y, 1, k.x2)
	return y
}

// layerBackward turns the gradient of a layer's output in dx into that of its input.
func (n *net) layerBackward(l int, k *activations, g *grads, dx []float32) {
	p, T, H, hd := n.layers[l], n.length, n.Hidden, n.hd
	kw := n.KVHeads * hd
	da := make([]float32, len(k.act))
	n.backward(p.down, g, k.act, dx, da)
	dgate, dup := make([]float32, len(da)), make([]float32, len(da))
	for i, v := range k.gate {
		s := 1 / (1 + float32(math.Exp(float64(-v))))
		dup[i] = da[i] * v * s
		dgate[i] = da[i] * k.up[i] * s * (1 + v*(1-s))
	}
	dn := make([]float32, T*H)
	n.backward(p.gate, g, k.n2, dgate, dn)
	n.backward(p.up, g, k.n2, dup, dn)
	n.normalizeBack(p.n2, g, k.x2, k.i2, dn, dx)

	do := make([]float32, T*H)
	n.backward(p.o, g, k.o, dx, do)
	dq, dk, dv := make([]float32, T*H), make([]float32, T*kw), make([]float32, T*kw)
	scale := float32(1 / math.Sqrt(float64(hd)))
	da = make([]float32, T)
	for h := range n.Heads {
		at := h / (n.Heads / n.KVHeads) * hd
		for t := range T {
			a := k.att[(h*T+t)*T:][:t+1]
			out := do[t*H+h*hd:][:hd]
			kernel.Rows(da[:t+1], k.v[at:], kw, out)
			var sum float32
			for u := range a {
				kernel.Add(dv[u*kw+at:][:hd], a[u], out)
				sum += da[u] * a[u]
			}
			for u := range a {
				ds := a[u] * (da[u] - sum) * scale
				kernel.Add(dq[t*H+h*hd:][:hd], ds, k.k[u*kw+at:][:hd])
				kernel.Add(dk[u*kw+at:][:hd], ds, k.q[t*H+h*hd:][:hd])
			}
		}
	}
	n.turn(dq, n.Heads, -1)
	n.turn(dk, n.KVHeads, -1)
	clear(dn)
	n.backward(p.q, g, k.n1, dq, dn)
	n.backward(p.k, g, k.n1, dk, dn)
	n.backward(p.v, g, k.n1, dv, dn)
	n.normalizeBack(p.n1, g, k.x, k.i1, dn, dx)
}
