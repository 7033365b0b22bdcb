// Package gguf reads, within bounds for untrusted files, the metadata (keys and values) at the
// start of a GGUF file (version 2 or 3, little-endian), without values too long for a
// configuration, such as the tokenizer's lists; it reads no tensors and writes nothing. The format
// is that of ggml's documentation (docs/gguf.md).
//
// Files come from sources that are not trusted: lengths, counts and depth are bounded, and
// values that are longer than a configuration needs are passed over.
package gguf
