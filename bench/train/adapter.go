package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// adapterTargets are the modules that an adapter changes.
var adapterTargets = []string{"q_proj", "v_proj", "o_proj", "down_proj"}

const (
	adapterRank  = 4
	adapterAlpha = 8
)

// lowRank is the pair of matrices that an adapter adds to one param of the base:
// its weights are base + scale·B·A.
type lowRank struct {
	of    int // index of the param
	base  []float32
	a, b  *param // rank x columns, rows x rank
	scale float32
}

// runAdapter trains a LoRA adapter for a checkpoint of the shape Tiny.
func runAdapter(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("train adapter", flag.ContinueOnError)
	base := f.String("base", "functions/shipped/tiny", "`folder` of the base checkpoint")
	name := f.String("name", "", "`name` of the text to learn (desks.go)")
	out := f.String("o", "", "`folder` to write the adapter to")
	steps := f.Int("steps", 120, "training steps")
	batch := f.Int("batch", 6, "sequences of a step")
	length := f.Int("length", 96, "tokens of a sequence, a multiple of 16")
	rate := f.Float64("rate", 1.5e-2, "highest learning rate")
	seed := f.Uint64("seed", 11, "seed of weights and text")
	threads := f.Int("threads", 2, "threads")
	if err := f.Parse(args); err != nil {
		return err
	}
	desk, ok := desks[*name]
	if !ok || *out == "" || *length < 16 || *length%16 != 0 || *batch < 1 || *threads < 1 {
		return errors.New("want -name of a desk, -o FOLDER, a length that is a multiple of 16, a batch and threads of at least 1")
	}
	tok, err := bpe.Load(filepath.Join(*base, "tokenizer.json"))
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(*seed, 6))
	net, err := readNet(*base, *length)
	if err != nil {
		return err
	}
	pairs := newPairs(net, rng)
	feed := newFeed(tok, rng)
	feed.document = desk.document
	first, last := trainAdapter(net, pairs, feed, *steps, *batch, *threads, *rate)
	if err := writeAdapter(*out, pairs, net); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s: seed %d, %d steps of %d times %d tokens, loss %.3f to %.3f\n", *name, *seed, *steps, *batch, *length, first, last)
	return nil
}

// readNet reads the weights of a checkpoint of the shape Tiny.
func readNet(dir string, length int) (*net, error) {
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	embed, ok := set.Lookup("model.embed_tokens.weight")
	if !ok || len(embed.Shape) != 2 {
		return nil, fmt.Errorf("%s has no embedding", dir)
	}
	n := newNet(checkpoint.Tiny, embed.Shape[0], length, rand.New(rand.NewPCG(0, 0)))
	for _, p := range n.params {
		t, ok := set.Lookup(p.name)
		if !ok || t.DType != "BF16" || !slices.Equal(t.Shape, p.shape) {
			return nil, fmt.Errorf("%s: tensor %s is not the one of the shipped model", dir, p.name)
		}
		for i, h := range set.BF16(p.name) {
			p.w[i] = kernel.FromBF16(h)
		}
	}
	return n, nil
}

// newPairs makes the matrices of an adapter: A is random and B is zero, as in the
// paper on LoRA, so that training starts at the base.
func newPairs(n *net, rng *rand.Rand) (pairs []*lowRank) {
	for i, p := range n.params {
		module, _ := strings.CutSuffix(p.name, ".weight")
		if !slices.Contains(adapterTargets, module[strings.LastIndexByte(module, '.')+1:]) {
			continue
		}
		rows, cols := p.shape[0], p.shape[1]
		l := &lowRank{of: i, base: slices.Clone(p.w), scale: float32(adapterAlpha) / adapterRank,
			a: &param{name: module + ".lora_A.weight", shape: []int{adapterRank, cols}, w: make([]float32, adapterRank*cols)},
			b: &param{name: module + ".lora_B.weight", shape: []int{rows, adapterRank}, w: make([]float32, rows*adapterRank)}}
		for j := range l.a.w {
			l.a.w[j] = float32(rng.NormFloat64() * 0.05)
		}
		pairs = append(pairs, l)
	}
	return pairs
}

// merge sets the param's weights to base + scale·B·A.
func (l *lowRank) merge(p *param) {
	cols := p.shape[1]
	copy(p.w, l.base)
	for r := range p.shape[0] {
		for k := range adapterRank {
			kernel.Add(p.w[r*cols:(r+1)*cols], l.scale*l.b.w[r*adapterRank+k], l.a.w[k*cols:(k+1)*cols])
		}
	}
}

// gradients computes those of A and B from that of the merged weights.
func (l *lowRank) gradients(dw, da, db []float32) {
	rows, cols := l.b.shape[0], l.a.shape[1]
	clear(da)
	for r := range rows {
		g := dw[r*cols : (r+1)*cols]
		for k := range adapterRank {
			db[r*adapterRank+k] = l.scale * kernel.Dot(g, l.a.w[k*cols:(k+1)*cols])
			kernel.Add(da[k*cols:(k+1)*cols], l.scale*l.b.w[r*adapterRank+k], g)
		}
	}
}

// trainAdapter returns the loss of the first and of the last step.
func trainAdapter(n *net, pairs []*lowRank, feed *batchFeed, steps, batch, threads int, rate float64) (first, last float64) {
	var trained []*param
	step := &grads{}
	for _, l := range pairs {
		trained = append(trained, l.a, l.b)
		step.of = append(step.of, make([]float32, len(l.a.w)), make([]float32, len(l.b.w)))
	}
	opt := newAdam(trained)
	sums := make([]*grads, batch)
	for i := range sums {
		sums[i] = newGrads(n)
	}
	for s := range steps {
		rows := make([][]int, batch)
		for i := range rows {
			rows[i] = feed.next(n.length + 1)
		}
		for _, l := range pairs {
			l.merge(n.params[l.of])
		}
		n.transpose()
		losses := make([]float64, batch)
		var wg sync.WaitGroup
		for t := range threads {
			wg.Go(func() {
				for i := t; i < batch; i += threads {
					sums[i].zero()
					losses[i] = n.learn(rows[i], sums[i])
				}
			})
		}
		wg.Wait()
		last = 0
		for _, l := range losses {
			last += l / float64(batch)
		}
		if s == 0 {
			first = last
		}
		for i, l := range pairs {
			dw := sums[0].of[l.of]
			for _, b := range sums[1:] {
				kernel.Add(dw, 1, b.of[l.of])
			}
			for j := range dw {
				dw[j] /= float32(batch)
			}
			l.gradients(dw, step.of[2*i], step.of[2*i+1])
		}
		opt.step(trained, []*grads{step}, learningRate(rate, s, steps))
	}
	return first, last
}

// writeAdapter writes PEFT's two files.
func writeAdapter(dir string, pairs []*lowRank, n *net) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var ts []safetensors.Source
	for _, l := range pairs {
		for _, p := range []*param{l.a, l.b} {
			ts = append(ts, safetensors.Source{Name: "base_model.model." + p.name, Shape: p.shape, Data: p.w})
		}
	}
	if err := checkpoint.Weights(filepath.Join(dir, "adapter_model.safetensors"), "BF16", ts); err != nil {
		return err
	}
	b, err := json.MarshalIndent(map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "inference_mode": true,
		"r": adapterRank, "lora_alpha": adapterAlpha, "lora_dropout": 0, "bias": "none", "use_rslora": false,
		"target_modules": adapterTargets,
	}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "adapter_config.json"), append(b, '\n'), 0o644)
}
