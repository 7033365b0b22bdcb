package llama

import (
	"math"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
)

// Cache has the keys and values of one sequence, which are those of one adapter or of
// the base.
type Cache struct {
	n       int         // positions filled
	k, v    [][]float32 // per layer, KVHeads*HeadDim numbers per position
	adapter *Adapter    // nil for the base
}

// NewCache makes an empty cache with capacity for so many positions; it grows.
func (m *Model) NewCache(capacity int) *Cache {
	c := &Cache{k: make([][]float32, m.Layers), v: make([][]float32, m.Layers)}
	c.reserve(capacity, m.KVHeads*m.HeadDim)
	return c
}

func (c *Cache) reserve(capacity, width int) {
	if len(c.k) == 0 || capacity*width <= cap(c.k[0]) {
		return
	}
	capacity = max(capacity, 2*cap(c.k[0])/width)
	for _, side := range [][][]float32{c.k, c.v} {
		for i, old := range side {
			side[i] = make([]float32, len(old), capacity*width)
			copy(side[i], old)
		}
	}
}

// Len is the number of filled positions.
func (c *Cache) Len() int { return c.n }

func (c *Cache) Bytes() int {
	n := 0
	for i := range c.k {
		n += 4 * (cap(c.k[i]) + cap(c.v[i]))
	}
	return n
}

// Use sets the adapter of the cache's sequence, nil for the base. It panics if the cache
// is not empty: what one adapter computed is wrong for every other.
func (c *Cache) Use(a *Adapter) {
	if c.n > 0 {
		panic("llama: a cache with keys and values changes its adapter")
	}
	c.adapter = a
}

// Reset empties the cache and keeps its memory. Its next sequence is the base's unless
// Use sets an adapter.
func (c *Cache) Reset() {
	c.n, c.adapter = 0, nil
	for i := range c.k {
		c.k[i], c.v[i] = c.k[i][:0], c.v[i][:0]
	}
}

// Input is the next tokens of one sequence in a pass.
type Input struct {
	Cache  *Cache
	Tokens []int // at least one, each below Vocab
	// Logits requests the scores after the last token; Forward sets Out to Vocab
	// numbers that are valid until the next pass.
	Logits bool
	Out    []float32
	// Hidden, if not nil, has Hidden numbers; the last hidden state (after the final
	// norm) of every token is added to it.
	Hidden []float32
}

// scratch is reused from pass to pass and grows with the largest.
type scratch struct {
	x, n, q, k, v, o, t, g, u []float32
	last, logits              []float32
	pos                       []int       // of each row
	owner                     []int       // input of each row
	att                       [][]float32 // scores, per member of the team
	adapters                  []*Adapter  // of each row
	rank                      int         // the largest of adapters, 0 for none
	low                       [modules][]float32
}

// growSlice returns s with length n, and capacity for three vectors more of width w: the
// kernel likes groups of four.
func growSlice(s []float32, rows, w int) []float32 {
	if cap(s) < (rows+3)*w {
		s = make([]float32, (rows+3)*w)
	}
	return s[:(rows+3)*w]
}

func (s *scratch) fit(m *Model, rows int) {
	q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	s.x, s.n, s.t = growSlice(s.x, rows, m.Hidden), growSlice(s.n, rows, m.Hidden), growSlice(s.t, rows, m.Hidden)
	s.q, s.o = growSlice(s.q, rows, q), growSlice(s.o, rows, q)
	s.k, s.v = growSlice(s.k, rows, kv), growSlice(s.v, rows, kv)
	s.g, s.u = growSlice(s.g, rows, m.Inter), growSlice(s.u, rows, m.Inter)
	for len(s.att) < m.team.n {
		s.att = append(s.att, nil)
	}
}

// rope holds sines and cosines of the positions seen so far.
type rope struct {
	freq     []float64
	cos, sin []float32
}

// precompute computes the table up to position n-1.
func (r *rope) precompute(n int) {
	h := len(r.freq)
	for p := len(r.cos) / h; p < n; p++ {
		for _, f := range r.freq {
			sin, cos := math.Sincos(float64(p) * f)
			r.cos, r.sin = append(r.cos, float32(cos)), append(r.sin, float32(sin))
		}
	}
}

// turn rotates the pairs (i, i+half) of every head of x by the position's angles.
func (r *rope) turn(x []float32, pos int) {
	h := len(r.freq)
	cos, sin := r.cos[pos*h:(pos+1)*h], r.sin[pos*h:(pos+1)*h]
	for ; len(x) >= 2*h; x = x[2*h:] {
		a, b := x[:h], x[h:2*h]
		for i := range a {
			p, q := a[i], b[i]
			a[i] = float32(p*cos[i]) - float32(q*sin[i])
			b[i] = float32(q*cos[i]) + float32(p*sin[i])
		}
	}
}

func rmsNorm(out, x, w []float32, eps float64) {
	var ss float64
	for _, v := range x {
		ss += float64(v) * float64(v)
	}
	r := float32(1 / math.Sqrt(ss/float64(len(x))+eps))
	for i, v := range x {
		out[i] = v * r * w[i]
	}
}

// minParallelWork is the least number of multiplications of a job for the team.
const minParallelWork = 1 << 18

// pieces runs f for n pieces, by the team if there is enough work.
func (m *Model) pieces(n, work int, f func(member, piece int)) {
	if work < minParallelWork {
		for i := range n {
			f(0, i)
		}
		return
	}
	m.team.do(n, f)
}

// minRowWork is how many weights a piece has, about: long enough that taking one costs
// nothing beside it, short enough that the wait for the last is short.
const minRowWork = 1 << 15

// rows runs f over the rows of matrices with cols columns, in pieces of whole fours.
func (m *Model) rows(rows, cols, work int, f func(lo, hi int)) {
	step := max(4, minRowWork/cols&^3)
	m.pieces((rows+step-1)/step, work, func(_, i int) { f(i*step, min(rows, (i+1)*step)) })
}

// Forward runs the inputs' tokens through the model and fills their caches.
func (m *Model) Forward(in []Input) {
	s := &m.s
	kvw := m.KVHeads * m.HeadDim
	s.pos, s.owner = s.pos[:0], s.owner[:0]
	longest := 0
	for i := range in {
		c := in[i].Cache
		c.reserve(c.n+len(in[i].Tokens), kvw)
		for j := range in[i].Tokens {
			s.pos = append(s.pos, c.n+j)
			s.owner = append(s.owner, i)
		}
		longest = max(longest, c.n+len(in[i].Tokens))
	}
	rows := len(s.pos)
	s.fit(m, rows)
	s.fitAdapters(in)
	m.rope.precompute(longest)
	r := 0
	for i := range in {
		for _, t := range in[i].Tokens {
			m.embed.row(s.x[r*m.Hidden:(r+1)*m.Hidden], t)
			r++
		}
	}
	for i := range m.layers {
		m.layer(i, in, rows)
	}
	for i := range in {
		in[i].Cache.n += len(in[i].Tokens)
	}
	m.finish(in)
}

func (m *Model) layer(layer int, in []Input, rows int) {
	s, l := &m.s, &m.layers[layer]
	H, hd := m.Hidden, m.HeadDim
	qw, kvw := m.Heads*hd, m.KVHeads*hd

	for r := range rows {
		rmsNorm(s.n[r*H:(r+1)*H], s.x[r*H:(r+1)*H], l.attnNorm, m.Eps)
	}
	m.project(layer, s.n, H, rows, moduleQ, moduleK, moduleV)
	// A piece is a whole head, so that the goroutine that computed it can rotate it.
	m.pieces(m.Heads+2*m.KVHeads, rows*(qw+2*kvw)*H, func(_, i int) {
		switch h := i - m.Heads; {
		case h < 0:
			l.q.times(s.q, s.n, i*hd, (i+1)*hd, rows)
			m.addProjected(layer, moduleQ, s.q, qw, i*hd, (i+1)*hd, rows)
			m.turn(s.q[i*hd:], qw, rows)
		case h < m.KVHeads:
			l.k.times(s.k, s.n, h*hd, (h+1)*hd, rows)
			m.addProjected(layer, moduleK, s.k, kvw, h*hd, (h+1)*hd, rows)
			m.turn(s.k[h*hd:], kvw, rows)
		default:
			h -= m.KVHeads
			l.v.times(s.v, s.n, h*hd, (h+1)*hd, rows)
			m.addProjected(layer, moduleV, s.v, kvw, h*hd, (h+1)*hd, rows)
		}
	})
	for r := range rows {
		c := in[s.owner[r]].Cache
		c.k[layer] = append(c.k[layer], s.k[r*kvw:(r+1)*kvw]...)
		c.v[layer] = append(c.v[layer], s.v[r*kvw:(r+1)*kvw]...)
	}
	reach := 0
	for _, p := range s.pos {
		reach += p + 1
	}
	m.pieces(rows*m.Heads, 2*reach*qw, func(member, i int) {
		m.attend(layer, in, i/m.Heads, i%m.Heads, &s.att[member])
	})
	m.addOutput(layer, &l.o, moduleO, s.o, qw, rows)
	for r := range rows {
		rmsNorm(s.n[r*H:(r+1)*H], s.x[r*H:(r+1)*H], l.mlpNorm, m.Eps)
	}
	I := m.Inter
	m.project(layer, s.n, H, rows, moduleGate, moduleUp)
	m.rows(I, 2*H, 2*rows*I*H, func(lo, hi int) {
		l.gate.times(s.g, s.n, lo, hi, rows)
		l.up.times(s.u, s.n, lo, hi, rows)
		m.addProjected(layer, moduleGate, s.g, I, lo, hi, rows)
		m.addProjected(layer, moduleUp, s.u, I, lo, hi, rows)
		for r := range rows {
			g, u := s.g[r*I+lo:r*I+hi], s.u[r*I+lo:r*I+hi]
			for j, v := range g {
				g[j] = v / (1 + float32(math.Exp(float64(-v)))) * u[j]
			}
		}
	})
	m.addOutput(layer, &l.down, moduleDown, s.g, I, rows)
}

// addOutput adds the product of w and the rows of in, of that width, to the hidden state.
func (m *Model) addOutput(layer int, w *matrix, of module, in []float32, width, rows int) {
	s, H := &m.s, m.Hidden
	m.project(layer, in, width, rows, of)
	m.rows(H, width, rows*width*H, func(lo, hi int) {
		w.times(s.t, in, lo, hi, rows)
		m.addProjected(layer, of, s.t, H, lo, hi, rows)
		for r := range rows {
			addVector(s.x[r*H+lo:r*H+hi], s.t[r*H+lo:r*H+hi])
		}
	})
}

// turn turns the head at the beginning of each row of x by the row's position.
func (m *Model) turn(x []float32, width, rows int) {
	for r := range rows {
		m.rope.turn(x[r*width:r*width+m.HeadDim], m.s.pos[r])
	}
}

func addVector(y, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += x[i]
	}
}

// attend computes one head of one row: scores against all keys up to its own
// position, softmax, and the weighted sum of the values.
func (m *Model) attend(i int, in []Input, row, head int, buf *[]float32) {
	s, hd := &m.s, m.HeadDim
	kvw, qw := m.KVHeads*hd, m.Heads*hd
	c, n := in[s.owner[row]].Cache, s.pos[row]+1
	if cap(*buf) < n {
		*buf = make([]float32, 2*n)
	}
	att := (*buf)[:n]
	at := head / (m.Heads / m.KVHeads) * hd
	q := s.q[row*qw+head*hd : row*qw+(head+1)*hd]
	kernel.Rows(att, c.k[i][at:], kvw, q)
	scale := float32(1 / math.Sqrt(float64(hd)))
	top := float32(math.Inf(-1))
	for t, d := range att {
		d *= scale
		att[t] = d
		top = max(top, d)
	}
	var sum float32
	for t, d := range att {
		e := float32(math.Exp(float64(d - top)))
		att[t] = e
		sum += e
	}
	out := s.o[row*qw+head*hd : row*qw+(head+1)*hd]
	clear(out)
	v := c.v[i]
	for t, e := range att {
		kernel.Add(out, e/sum, v[t*kvw+at:t*kvw+at+hd])
	}
}

// finish normalises and computes the scores that are asked for.
func (m *Model) finish(in []Input) {
	s, H := &m.s, m.Hidden
	asked := 0
	for i := range in {
		if in[i].Logits {
			asked++
		}
	}
	s.last = growSlice(s.last, asked, H)
	r, k := 0, 0
	for i := range in {
		last := r + len(in[i].Tokens) - 1
		for ; r <= last; r++ {
			if in[i].Hidden == nil && (r < last || !in[i].Logits) {
				continue
			}
			rmsNorm(s.n[r*H:(r+1)*H], s.x[r*H:(r+1)*H], m.norm, m.Eps)
			if in[i].Hidden != nil {
				addVector(in[i].Hidden, s.n[r*H:(r+1)*H])
			}
		}
		if in[i].Logits {
			copy(s.last[k*H:(k+1)*H], s.n[last*H:(last+1)*H])
			k++
		}
	}
	if asked == 0 {
		return
	}
	if cap(s.logits) < asked*m.Vocab {
		s.logits = make([]float32, asked*m.Vocab)
	}
	s.logits = s.logits[:asked*m.Vocab]
	m.rows(m.Vocab, H, asked*m.Vocab*H, func(lo, hi int) {
		m.head.times(s.logits, s.last, lo, hi, asked)
	})
	k = 0
	for i := range in {
		if in[i].Logits {
			in[i].Out = s.logits[k*m.Vocab : (k+1)*m.Vocab]
			k++
		}
	}
}
