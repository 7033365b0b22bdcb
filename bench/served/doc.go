// Package served drives a platform from outside, over HTTP. It starts `thaw serve` in
// its own folder or connects to a running one, and implements the few calls of the
// control API that a benchmark needs.
package served
