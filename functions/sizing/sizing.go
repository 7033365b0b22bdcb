package sizing

import (
	"github.com/thaw-dev/thaw/functions"
)

// Model is what matters of a checkpoint. Sizes are in bytes.
type Model struct {
	// Weights in memory. Floats of 32 bits count 16 where the engine narrows them.
	Weights int64
	// Quantized: the weights are narrower than 16 bits already.
	Quantized bool
	Cache     []Layers
	// Context is the most tokens of a request, prompt and answer.
	Context int
	// Heads are those of attention; tensor parallelism has to divide them. 0: not known.
	Heads int
	// Hidden is the size of the hidden state, Inter that of the feed-forward (of all
	// experts that a token visits), Vocab the number of tokens there are.
	Hidden, Inter, Vocab int
	// Media: the model reads images or sound, whose encoder needs room of its own.
	Media bool
	// Adapter is the size of one adapter's slot, and Slots their number.
	Adapter int64
	Slots   int
}

// Layers are layers whose caches are alike.
type Layers struct {
	Count int
	// Token is the cache of one token in one layer.
	Token int64
	// Heads that tensor parallelism divides between GPUs; 0: each GPU has them all.
	Heads int
	// Window is the most tokens that are kept of a request; 0: all.
	Window int
	// State is what a request has in one layer whatever its length.
	State int64
}

// Use is how a model is served.
type Use struct {
	Engine functions.Engine
	// Context is the most tokens of a request, and Requests how many run at once.
	Context, Requests int
	// GPUs that share the model; 0: processors only.
	GPUs int
}

// Need is the memory of one of the GPUs, or of the host where there is none.
type Need struct {
	Weights, Cache, Adapters int64
	// Program is what the engine takes whatever it serves; Work is what a batch takes.
	Program, Work int64
}

// step is what Total is rounded up to.
const step = 64 << 20

// Total is the sum, rounded up.
func (n Need) Total() int64 {
	sum := n.Weights + n.Cache + n.Adapters + n.Program + n.Work
	return (sum + step - 1) / step * step
}

// CacheOf is the cache of one request of so many tokens, on one of so many GPUs.
func (m *Model) CacheOf(tokens, gpus int) int64 {
	var sum int64
	for _, l := range m.Cache {
		token, state := l.Token, l.State
		if gpus > 1 && l.Heads > 0 {
			// Heads are not cut: a GPU has at least one.
			own := int64(max(1, (l.Heads+gpus-1)/gpus))
			token = l.Token / int64(l.Heads) * own
			state = l.State / int64(l.Heads) * own
		}
		kept := tokens
		if l.Window > 0 {
			kept = min(kept, l.Window)
		}
		sum += int64(l.Count) * (token*int64(kept) + state)
	}
	return sum
}

// Of works out what a model needs.
func Of(m *Model, u Use) Need {
	gpus := max(u.GPUs, 1)
	e := engineOf(u)
	n := Need{
		Weights:  (m.Weights + int64(gpus) - 1) / int64(gpus),
		Cache:    m.CacheOf(u.Context, gpus) * int64(u.Requests) * e.cacheWidth / 2,
		Adapters: m.Adapter * int64(m.Slots) / int64(gpus),
		Program:  e.program,
	}
	if gpus > 1 {
		n.Program += e.parallel
	}
	if m.Media {
		n.Program += e.media
	}
	// A batch has the hidden state a few times (input, normalised, attention, output)
	// and both halves of a gated feed-forward, of which a GPU has its share.
	n.Work = int64(e.batch)*(int64(m.Hidden)*4+int64(m.Inter)*2/int64(gpus))*e.width + int64(e.logits)*int64(m.Vocab)*4
	return n
}

type engineFacts struct {
	program, parallel, media int64
	batch                    int   // tokens of one pass
	logits                   int   // rows of the vocabulary's size, in 32 bits
	width                    int64 // bytes of a value of a batch
	cacheWidth               int64 // bytes of a cached value
}

func engineOf(u Use) engineFacts {
	const mib = 1 << 20
	switch {
	case u.Engine == functions.EngineEmber:
		// The cache is of 32 bits, and program and tokenizer are small. A pass has 32 tokens.
		return engineFacts{program: 48 * mib, batch: 32, logits: 32, width: 4, cacheWidth: 4}
	case u.Engine == functions.EngineLlamaCpp && u.GPUs == 0:
		return engineFacts{program: 256 * mib, media: 512 * mib, batch: 512, logits: 512, width: 4, cacheWidth: 2}
	case u.Engine == functions.EngineLlamaCpp:
		// CUDA's context and kernels; a pass has 512 tokens (--ubatch-size).
		return engineFacts{program: 640 * mib, parallel: 256 * mib, media: 1024 * mib, batch: 512, logits: 512, width: 4, cacheWidth: 2}
	case u.GPUs == 0:
		// vLLM on processors: interpreter, libraries and a pass of 2048 tokens.
		return engineFacts{program: 2048 * mib, media: 1024 * mib, batch: 2048, logits: 256, width: 4, cacheWidth: 2}
	}
	// vLLM and SGLang: CUDA's context and libraries 768 MiB, captured graphs 768 MiB,
	// NCCL 512 MiB; a pass has 8192 tokens, and the sampler sorts 512 rows.
	return engineFacts{program: 1536 * mib, parallel: 512 * mib, media: 1024 * mib, batch: 8192, logits: 512, width: 2, cacheWidth: 2}
}

// HostMemory is what an engine on GPUs takes of the host's memory: interpreter, libraries
// and buffers of each of its processes.
func HostMemory(u Use) int64 {
	if u.Engine == functions.EngineLlamaCpp {
		return 2 << 30
	}
	// Of vLLM and SGLang the server, the scheduler and a worker for each GPU import torch,
	// and workers have CUDA's host memory too.
	return 8<<30 + int64(max(u.GPUs-1, 0))*(4<<30)
}
