// Package process starts and ends the programs of a benchmark, each in its own process
// group, and reads their CPU time and memory. The kernel reports the latter on Linux only.
// Output goes to a file for diagnosis, and no program outlives the benchmark.
package process
