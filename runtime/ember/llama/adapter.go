package llama

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
)

// module numbers the matrices of a layer that an adapter can change.
type module int

const (
	moduleQ module = iota
	moduleK
	moduleV
	moduleO
	moduleGate
	moduleUp
	moduleDown
	modules
)

var moduleNames = [modules]string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}

func shortName(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

func knownModules() string {
	var out []string
	for _, n := range moduleNames {
		out = append(out, shortName(n))
	}
	return strings.Join(out, ", ")
}

func (c *Config) moduleShape(m module) (rows, cols int) {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	switch m {
	case moduleQ:
		return q, c.Hidden
	case moduleK, moduleV:
		return kv, c.Hidden
	case moduleO:
		return c.Hidden, q
	case moduleDown:
		return c.Hidden, c.Inter
	}
	return c.Inter, c.Hidden
}

// lowRank is what an adapter adds to a module: scale·B·A. Rank 0 adds nothing.
type lowRank struct {
	rank int
	a    []float32 // rank x cols
	b    []float32 // rank x rows: B transposed, times scale
}

// Adapter is a LoRA adapter of a model, in memory. It is not changed after it is made,
// and any number of sequences use it.
type Adapter struct {
	Rank   int
	Bytes  int
	layers [][modules]lowRank
}

const adapterWeights = "adapter_model.safetensors"

// OpenAdapter reads a LoRA adapter for a model with the config c from a folder in
// PEFT's form. What the engine does not do exactly as PEFT does is an error: an
// adapter applied in part answers wrongly without a sign of it.
func OpenAdapter(dir string, c *Config, maxRank int) (*Adapter, error) {
	conf, err := readAdapterConfig(dir)
	if err != nil {
		return nil, err
	}
	if conf.rank > maxRank {
		return nil, fmt.Errorf("its rank is %d and the engine takes %d at most (--max-lora-rank)", conf.rank, maxRank)
	}
	path := filepath.Join(dir, adapterWeights)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, "adapter_model.bin")); err == nil {
			return nil, errors.New("its weights are a pickle (adapter_model.bin), which can run code when it is read: save them as " +
				adapterWeights)
		}
		return nil, errors.New("it has no " + adapterWeights)
	}
	set, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	a, err := bindAdapter(set, c, &conf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", adapterWeights, err)
	}
	return a, nil
}

// bindAdapter copies the matrices of an adapter and checks that there are those that
// conf names, and no others.
func bindAdapter(set *safetensors.Set, c *Config, conf *adapterConfig) (*Adapter, error) {
	a := &Adapter{Rank: conf.rank, layers: make([][modules]lowRank, c.Layers)}
	left := set.Names()
	take := func(name string, rows, cols int) ([]float32, error) {
		if i, ok := slices.BinarySearch(left, name); ok {
			left = slices.Delete(left, i, i+1)
		}
		return readMatrix(set, name, rows, cols)
	}
	for i := range a.layers {
		for m := range modules {
			at := fmt.Sprintf("model.layers.%d.%s", i, moduleNames[m])
			if !conf.changes(i, at) {
				continue
			}
			rows, cols := c.moduleShape(m)
			down, err := take("base_model.model."+at+".lora_A.weight", conf.rank, cols)
			if err != nil {
				return nil, err
			}
			up, err := take("base_model.model."+at+".lora_B.weight", rows, conf.rank)
			if err != nil {
				return nil, err
			}
			l := lowRank{rank: conf.rank, a: down, b: make([]float32, len(up))}
			for r := range rows {
				for k := range conf.rank {
					l.b[k*rows+r] = float32(conf.scale * float64(up[r*conf.rank+k]))
				}
			}
			a.layers[i][m] = l
			a.Bytes += 4 * (len(l.a) + len(l.b))
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("tensor %s is not supported, or target_modules does not name it (supported: lora_A and lora_B of %s)", left[0],
			knownModules())
	}
	if a.Bytes == 0 {
		return nil, errors.New("target_modules names no module of this model")
	}
	return a, nil
}

// readMatrix returns a copy of a tensor, widened. It must have the shape and finite
// numbers.
func readMatrix(set *safetensors.Set, name string, rows, cols int) ([]float32, error) {
	t, ok := set.Lookup(name)
	if !ok {
		names := set.Names()
		return nil, fmt.Errorf("tensor %s is missing, though target_modules names it; it has %d, such as %v", name, len(names),
			names[:min(1, len(names))])
	}
	if !slices.Equal(t.Shape, []int{rows, cols}) {
		return nil, fmt.Errorf("tensor %s: shape %v, the model and r ask for %v: it was trained on another model, or r is not its rank", name,
			t.Shape, []int{rows, cols})
	}
	out := make([]float32, rows*cols)
	switch t.DType {
	case "F32":
		copy(out, set.F32(name))
	case "BF16":
		for i, h := range set.BF16(name) {
			out[i] = kernel.FromBF16(h)
		}
	case "F16":
		b := set.Bytes(name)
		for i := range out {
			out[i] = fromHalf(binary.LittleEndian.Uint16(b[2*i:]))
		}
	default:
		return nil, fmt.Errorf("tensor %s: dtype %s is not supported (known: F32, BF16, F16)", name, t.DType)
	}
	for _, v := range out {
		if v-v != 0 {
			return nil, fmt.Errorf("tensor %s has a number that is not finite", name)
		}
	}
	return out, nil
}

// fromHalf widens an IEEE 754 number of 16 bits.
func fromHalf(h uint16) float32 {
	exponent, fraction := int(h>>10&0x1f), float64(h&0x3ff)
	var v float64
	switch exponent {
	case 0: // subnormal
		v = math.Ldexp(fraction, -24)
	case 0x1f:
		if v = math.Inf(1); fraction != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	if h>>15 == 1 {
		v = -v
	}
	return float32(v)
}

// project computes A·x of each row whose adapter changes one of the modules, before
// [Model.addProjected]. Each row is computed by itself, so that a row's bits do not
// depend on its batch.
func (m *Model) project(layer int, x []float32, cols, rows int, of ...module) {
	s := &m.s
	if s.rank == 0 {
		return
	}
	m.pieces(rows, rows*s.rank*cols*len(of), func(_, r int) {
		if s.adapters[r] == nil {
			return
		}
		for _, mod := range of {
			if l := &s.adapters[r].layers[layer][mod]; l.rank > 0 {
				kernel.Rows(s.low[mod][r*s.rank:r*s.rank+l.rank], l.a, cols, x[r*cols:(r+1)*cols])
			}
		}
	})
}

// addProjected adds scale·B·(A·x) to the elements lo..hi-1 of each row of out.
func (m *Model) addProjected(layer int, mod module, out []float32, width, lo, hi, rows int) {
	s := &m.s
	if s.rank == 0 {
		return
	}
	for r, a := range s.adapters[:rows] {
		if a == nil {
			continue
		}
		l := &a.layers[layer][mod]
		for k, v := range s.low[mod][r*s.rank : r*s.rank+l.rank] {
			kernel.Add(out[r*width+lo:r*width+hi], v, l.b[k*width+lo:k*width+hi])
		}
	}
}

// fitAdapters notes the adapter of each row of a pass.
func (s *scratch) fitAdapters(in []Input) {
	s.adapters, s.rank = s.adapters[:0], 0
	for _, o := range s.owner {
		a := in[o].Cache.adapter
		s.adapters = append(s.adapters, a)
		if a != nil {
			s.rank = max(s.rank, a.Rank)
		}
	}
	for i := range s.low {
		if need := s.rank * len(s.owner); cap(s.low[i]) < need {
			s.low[i] = make([]float32, need)
		} else {
			s.low[i] = s.low[i][:need]
		}
	}
}
