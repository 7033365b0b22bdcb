// Package fleet reads the description file of a simulated fleet: kinds of nodes with their
// GPUs, memory and rates, and engine times. It is parsed as strictly as a model file: an
// unknown key is an error with its line.
//
// WithGPUs resizes a fleet: the same kinds of nodes in the same order, repeated up to a
// number of GPUs. Studies use it for the curve of waiting time against GPUs.
package fleet
