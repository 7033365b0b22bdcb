// Package process starts and ends the programs of a benchmark, each in its own process
// group so that none outlives the benchmark, with its output in a file for diagnosis. It
// also reads a program's CPU time and memory from the kernel (Linux only).
package process
