// Package process starts the programs of a bench and ends them again: each in a
// process group of its own, with its output kept in a file, so that nothing
// outlives the bench and what went wrong can be read. It also asks the kernel
// what a program has cost: processor time and memory (Linux only).
package process
