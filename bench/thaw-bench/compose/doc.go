// Package compose is the benchmark of Compositions and batches: CPU time of a call, ensembles that
// do not fit onto the GPUs at once, a batch beside interactive requests, the cancelling of a
// debate. Ensembles and batches run on the simulator, and live with engines that generate nothing
// and take their time to load.
package compose
