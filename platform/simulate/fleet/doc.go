// Package fleet reads what a simulation runs on: kinds of nodes with their GPUs,
// memory and rates, and how long engines take. A file is read as strictly as a
// model file: an unknown key is an error with its line.
//
// A fleet can be asked for in another size (WithGPUs): the same kinds of nodes
// in the same order, until so many GPUs stand there. That is what draws the
// curve of waiting against GPUs.
package fleet
