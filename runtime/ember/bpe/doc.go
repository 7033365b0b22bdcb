// Package bpe turns text into tokens and back as Hugging Face's byte-level BPE
// tokenizers do (GPT-2, Llama 3, Qwen2, SmolLM).
//
// tokenizer.json is large (a hundred thousand names, as many merges or more) and
// stands in the way of the first token, so the two big tables are read by a
// scanner of our own straight into flat tables: names as bytes of one arena, two
// open-addressed hash tables without pointers. Everything else in the file is
// small and goes through encoding/json.
//
// What is not understood is refused by name at load: another model type, a
// normalizer other than NFC, a split pattern that is not one of the known ones.
// A tokenizer that is nearly right is worse than none.
//
// Special tokens in a text are recognised wherever they stand, as Hugging Face
// and vLLM do. A Tokenizer is safe for concurrent use.
package bpe
