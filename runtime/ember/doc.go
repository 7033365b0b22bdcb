// Package ember is the embedded engine: a real language model server in Go alone,
// for machines that have nothing else. `thaw engine ember` runs it as a process of
// its own; Main is that program, Run the same with the options as a struct.
//
// It speaks what vLLM speaks, so that the platform treats both alike: GET /health
// (503 while loading), /v1/models, /v1/completions, /v1/chat/completions,
// /v1/embeddings, /tokenize, /detokenize, /version, /metrics with vLLM's names.
// Two things it does better on purpose: the listener is open from the first
// millisecond and says that it is loading, and with NOTIFY_SOCKET set it pushes its
// progress and its readiness (sd_notify) instead of waiting to be asked.
//
// # Packages
//
//	kernel       dot products, in assembly and in Go, the same bits
//	safetensors  weights, mapped and checked
//	bpe          text to tokens and back
//	chat         messages to a prompt
//	llama        tokens to scores, several sequences a pass
//
// # How a request runs
//
// A handler reads and checks the body, renders and tokenizes it, and puts a
// sequence into the queue. One goroutine, the loop, owns the model and every
// running sequence: each round takes one token of every sequence that is
// generating and fills up with pieces of prompts (continuous batching), runs one
// pass, samples, decodes, finds stop strings, and leaves what can be sent with the
// sequence. It never waits for a client. A handler whose client has gone marks its
// sequence, and the loop drops it before the next pass.
//
// # What it refuses
//
// n above 1, several prompts in one completion, images, structured output, a forced
// tool call: 400, in OpenAI's shape. tools with tool_choice none or auto are taken
// and ignored. Fields it does not know are ignored, as vLLM does.
package ember
