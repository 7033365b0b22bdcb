// Package fleet reads the YAML file that describes a simulated fleet (kinds of nodes with GPUs,
// memory and rates, and engine times), and resizes a fleet to a number of GPUs; it simulates
// nothing. The file is parsed as strictly as a model file: an unknown key is an error with its
// line.
//
// WithGPUs resizes a fleet: the same kinds of nodes in the same order, repeated up to a
// number of GPUs. Studies use it for the curve of waiting time against GPUs.
package fleet
