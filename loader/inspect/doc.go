// Package inspect reads from a source what a checkpoint is (format, the weight files to load,
// sizes, architecture, what the model answers, context, KV cache, quantisation, LoRA adapters), by
// its listing, configuration and headers; it refuses incomplete sets and downloads no weights. It
// reads the listing, config.json, the index of shards and the header of one file (safetensors), or
// the metadata of a GGUF file, each by byte ranges.
//
// The result has what package sizing computes with. A source of which no model file can be
// worked out is an error that says why and names the way out.
package inspect
