// Package compose measures Compositions and batches: the processor time of a call, an
// ensemble that does not fit onto the GPUs at once, a batch beside interactive requests,
// and the cancelling of a debate. Ensembles and batches run on the simulator, and live with
// engines that generate nothing and take their time to load.
package compose
