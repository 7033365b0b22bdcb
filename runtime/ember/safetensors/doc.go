// Package safetensors maps safetensors files into memory read-only, or copies them there while
// they arrive, and gives the bytes of their tensors without a further copy; it writes no file.
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
