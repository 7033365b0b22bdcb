// Package compose measures Compositions and batches: the processor time of a call beside a
// request by name, an ensemble of models that do not fit onto the GPUs together, a batch
// over several models beside interactive requests, and the cancelling of a debate. Ensembles
// and batches run on the simulator, and live with engines that generate nothing and take
// their time to load.
package compose
