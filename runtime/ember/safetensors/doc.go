// Package safetensors reads Hugging Face's safetensors files without copying the
// weights, and writes small ones.
//
// A file is mapped and its header validated (functions/safetensors) first, so a
// truncated or crafted file is an error and never a read outside the mapping.
//
// Files that are still arriving or are removed later are read into memory instead
// (CopyFolder), each once and in order.
//
// Tensors stay valid until Close. Folders with model.safetensors.index.json are
// one set of tensors over several files.
package safetensors
