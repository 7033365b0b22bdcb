// Package sizing computes the memory that a model needs on each GPU, or on a host without GPUs
// (weights, KV cache, engine), how many of the given GPUs hold it, and, where they do not, what
// would make it fit; it reads no file and measures nothing. It is arithmetic: values in, verdict
// out.
//
// A cache of keys and values has, for each token and layer, 2 x KV heads x head size
// values (Shazeer 2019, Ainslie et al. 2023); latent attention has one vector of rank plus
// rotary part instead (DeepSeek-AI 2024); a layer with a window has at most the window's
// tokens; a layer with linear attention has a state of fixed size. Tensor parallelism
// divides weights and KV heads between GPUs, but a GPU has at least one head, and each
// has the whole latent vector.
//
// What an engine takes beside them is not in any file. The constants here are estimates on
// the high side, and each says what it is for: ember's was measured, those of engines on
// GPUs were not, so the first start of a model may show that less would do.
package sizing
