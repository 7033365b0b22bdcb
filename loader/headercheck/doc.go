// Package headercheck checks model files before an engine reads them: safetensors headers (of GGUF
// only magic and version), config.json, the first and last bytes of tokenizers' JSON, and that an
// index's shards are all there; it refuses Git LFS pointers and computes no digests.
//
// Engines parse headers in C++ and Python, and have crashed on crafted ones. Here every
// part of a header is bounded (functions/safetensors), and a file that is shorter than
// its header says is told apart from an invalid one: an interrupted copy leaves such a
// file, and the error says so. Only headers are read, never the tensors.
package headercheck
