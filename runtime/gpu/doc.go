// Package gpu reads by NVML which NVIDIA GPUs this machine has, their memory, utilisation and
// health and the processes that hold their memory, and watches for hardware errors; it changes no
// setting. It is the only importer of go-nvml.
//
// NVML is loaded at run time and needs cgo. A machine without a driver, and a binary
// built without cgo or not for Linux, have no GPUs; Why has the reason (`thaw doctor`),
// it is not an error.
//
// A hanging driver (a GPU that has fallen off the bus) must not hang the agent: List
// waits for a bounded time, then returns the last list, marked.
package gpu
