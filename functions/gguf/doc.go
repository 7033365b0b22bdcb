// Package gguf reads the metadata of a GGUF file (versions 2 and 3, little-endian), the keys and
// values at its start, within bounds for untrusted files; it reads no tensors and writes nothing.
// The format is that of ggml's documentation (docs/gguf.md).
//
// Files come from sources that are not trusted: lengths, counts and depth are bounded, and
// values that are longer than a configuration needs are passed over.
package gguf
