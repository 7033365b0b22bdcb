// Package process starts a benchmark's programs in process groups, waits until they listen, ends
// them, and reads CPU time and memory: of running processes on Linux only, of ended ones
// everywhere. Output goes to a file for diagnosis, and no program outlives the benchmark.
package process
