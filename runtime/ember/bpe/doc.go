// Package bpe reads a Hugging Face tokenizer.json, and turns text into tokens and back by
// byte-level BPE (GPT-2, Llama 3, Qwen2, SmolLM); it trains no tokenizer and refuses other types.
//
// tokenizer.json is large (a hundred thousand names, as many merges or more) and
// delays the first token, so its two large tables are read value by value into flat tables:
// names as bytes of one arena, two open-addressed hash tables without pointers.
// encoding/json reads the rest.
//
// Load refuses what would be tokenized wrongly: another model type, a normalizer other
// than NFC, an unknown split pattern.
//
// Special tokens are recognised anywhere in a text, as in Hugging Face and vLLM. A Tokenizer is
// safe for concurrent use.
package bpe
