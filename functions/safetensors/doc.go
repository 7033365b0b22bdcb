// Package safetensors reads and checks the header of a safetensors file, Hugging Face's format of
// weights, and returns the name, type, shape and place of each tensor; it does not read the
// tensors. The loader refuses a bad file with it before any engine opens it; the replica reads
// adapters with it, and the embedded engine its weights: a file that passes one passes all.
//
//	8 bytes     length of the JSON, little endian
//	JSON        {"name": {"dtype": "BF16", "shape": [2,3], "data_offsets": [0,12]}, …}
//	data        the tensors, in the order of their offsets
//
// Engines parse this header in C++ and Python and have crashed on crafted ones, so
// it is checked to the last byte: JSON without duplicate names, known types, shapes
// whose product fits, and offsets that cover the data without hole or overlap. Every
// bound is one of the reference implementation where that has one. A file that is
// shorter than its header says is told apart (Error.Truncated): an interrupted copy
// leaves such a file.
//
// Only the header is read, never the tensors.
package safetensors
