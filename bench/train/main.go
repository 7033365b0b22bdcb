// Command train trains the checkpoint that ships with thaw, functions/shipped/tiny: a Llama
// of under a million parameters, from a seed, on text that the project owns. The text is in
// corpus.go, the hand-written backward pass in net.go, AdamW in adam.go.
//
//	go run ./bench/train -o functions/shipped/tiny
//
//	go run ./bench/train adapter -name billing -o deploy/example/switchboard/billing
//
// The second form trains a LoRA adapter of that checkpoint (adapter.go) on the text of
// desks.go. The same seed, steps and batch give the same weights on every machine with any number
// of threads: gradients are summed in a fixed order.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) > 0 && args[0] == "adapter" {
		return runAdapter(args[1:], stdout)
	}
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	out := f.String("o", "", "`folder` to write the checkpoint to")
	steps := f.Int("steps", 2000, "training steps")
	batch := f.Int("batch", 16, "sequences of a step")
	length := f.Int("length", 128, "tokens of a sequence, a multiple of 16")
	rate := f.Float64("rate", 4e-3, "highest learning rate")
	seed := f.Uint64("seed", 11, "seed of weights and text")
	threads := f.Int("threads", 2, "threads")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *out == "" || *length%16 != 0 || *batch < 1 || *threads < 1 {
		return fmt.Errorf("want -o FOLDER, a length that is a multiple of 16, a batch and threads of at least 1")
	}
	began := time.Now()
	rng := rand.New(rand.NewPCG(*seed, 5))
	vocab, err := checkpoint.Files(*out, checkpoint.Tiny, sampleText(rng, 300_000))
	if err != nil {
		return err
	}
	tok, err := bpe.Load(filepath.Join(*out, "tokenizer.json"))
	if err != nil {
		return err
	}
	net := newNet(checkpoint.Tiny, vocab, *length, rng)
	fmt.Fprintf(stdout, "%d parameters, vocabulary %d\n", net.size(), vocab)

	batches := newFeed(tok, rng)
	opt := newAdam(net.params)
	sums := make([]*grads, *batch)
	for i := range sums {
		sums[i] = newGrads(net)
	}
	loss := 0.0
	for step := range *steps {
		rows := make([][]int, *batch)
		for i := range rows {
			rows[i] = batches.next(*length + 1)
		}
		losses := make([]float64, *batch)
		net.transpose()
		var wg sync.WaitGroup
		for t := range *threads {
			wg.Go(func() {
				for i := t; i < *batch; i += *threads {
					sums[i].zero()
					losses[i] = net.learn(rows[i], sums[i])
				}
			})
		}
		wg.Wait()
		now := 0.0
		for _, l := range losses {
			now += l / float64(*batch)
		}
		opt.step(net.params, sums, learningRate(*rate, step, *steps))
		if loss == 0 {
			loss = now
		}
		loss = 0.95*loss + 0.05*now
		if step%100 == 99 || step == 0 {
			fmt.Fprintf(stdout, "step %d loss %.3f, %.0f tokens/s, %v\n", step+1, loss,
				float64((step+1)**batch**length)/time.Since(began).Seconds(), time.Since(began).Round(time.Second))
		}
	}
	if err := checkpoint.Weights(filepath.Join(*out, "model.safetensors"), "BF16", net.sources()); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "seed %d, %d steps of %d times %d tokens, loss %.3f, %v\n", *seed, *steps, *batch, *length, loss, time.Since(began).Round(time.Second))
	return nil
}

// learningRate warms up linearly and then falls along a half cosine to a twentieth.
func learningRate(rate float64, step, steps int) float64 {
	warm := min(1, float64(step+1)/50)
	return rate * warm * (0.05 + 0.95*0.5*(1+math.Cos(math.Pi*float64(step)/float64(steps))))
}

// batchFeed packs documents into sequences; each sequence starts with a document.
type batchFeed struct {
	tok *bpe.Tokenizer
	rng *rand.Rand
	eot int
	// document draws the next document.
	document func(*rand.Rand) string
}

func newFeed(tok *bpe.Tokenizer, rng *rand.Rand) *batchFeed {
	eot, _ := tok.Find(checkpoint.EndOfText)
	return &batchFeed{tok, rng, eot, document}
}

func (f *batchFeed) next(n int) []int {
	var ids []int
	for len(ids) < n {
		ids = append(ids, f.tok.Encode(f.document(f.rng), false)...)
		ids = append(ids, f.eot)
	}
	return ids[:n]
}
