// Package ember is thaw's own inference engine in Go, for machines without another: an HTTP server
// with vLLM's API that runs Llama and Qwen2 models, and LoRA adapters of them, on the CPU alone.
// `thaw engine ember` runs it as a process of its own; Main is that program, Run the same with a
// struct of options.
//
// It has vLLM's API, so that the platform treats both alike: GET /health
// (503 while loading), /v1/models, /v1/completions, /v1/chat/completions,
// /v1/embeddings, /version, /metrics with vLLM's names, and with
// --enable-lora /v1/load_lora_adapter and /v1/unload_lora_adapter: a request that names an
// adapter as its model is answered with it.
// Two differences: the listener is open from the first millisecond and reports loading,
// and with NOTIFY_SOCKET it sends its progress and readiness (sd_notify).
//
// # Packages
//
//	kernel       dot products, in assembly and in Go, the same bits
//	safetensors  weights, mapped and validated
//	bpe          text to tokens and back
//	chat         messages to a prompt
//	llama        tokens to scores, several sequences a pass
//
// # How a request runs
//
// A handler reads and checks the body, renders and tokenizes it, and puts a
// sequence into the queue. One goroutine, the loop, owns the model and every
// running sequence: a batch has one token of every generating sequence and pieces of
// prompts (continuous batching); after the pass it samples, decodes, finds stop strings
// and publishes the text on the sequence. It never waits for a client. A handler whose
// client has gone marks its sequence, and the loop drops it before the next batch.
//
// # Limits
//
// n above 1, several prompts in one completion, images, structured output, a forced
// tool call: 400, in OpenAI's shape. tools with tool_choice none or auto are
// ignored. Unknown fields are ignored, as in vLLM.
//
// # Size
//
// The package is one idea, the server: the loop and the HTTP handlers around it share
// the sequence. What can stand alone is in the packages above.
package ember
