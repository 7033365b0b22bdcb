// Package llama loads Llama and Qwen2 transformers and LoRA adapters from Hugging Face folders,
// and computes on the CPU, for several sequences at once, next-token scores and hidden states; it
// does not use llama.cpp.
//
// Weights stay in the mapping of the file and are read in their own type, BF16 or
// F32; all arithmetic is in float32. One pass (Forward) takes tokens of several
// sequences at once, some with one new token, some with a piece of a prompt: a
// weight row is read once for four vectors. A sequence's result does not
// depend on the others in the pass (see package kernel).
//
// A Model is used by one goroutine at a time; inside a pass it spreads rows over
// its own workers, which Close ends.
package llama
