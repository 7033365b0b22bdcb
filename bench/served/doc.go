// Package served starts `thaw serve` for a benchmark, or connects to a running one, and
// calls its control API.
package served
