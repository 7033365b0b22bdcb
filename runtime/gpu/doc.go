// Package gpu tells which GPUs this machine has and how they are: memory,
// utilisation, health. It is the only importer of go-nvml.
//
// NVML is loaded at run time and wants cgo, so facts come in three kinds, none
// of which is an error: GPUs; a machine without a driver; a binary built
// without cgo (or not for Linux), which cannot look. Why tells the last two
// apart for people (`thaw doctor`).
//
// A driver that hangs (a GPU fallen off the bus) must not hang the agent: List
// waits for it a bounded time and then gives the last facts, marked.
package gpu
