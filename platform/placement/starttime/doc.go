// Package starttime estimates how long a model takes from the decision to start it to
// READY: measured, or derived from sizes and rates. The estimates only have to order
// nodes correctly.
package starttime
