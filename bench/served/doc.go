// Package served starts `thaw serve` with a folder of model files for a benchmark, or connects to
// a running one, and asks its control API for replicas, events, cold starts and keys.
package served
