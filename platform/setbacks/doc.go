// Package setbacks counts what went wrong with the starts of a function: those that failed
// one after another, and how long to pause before the next; and evictions that came too
// early, and how long the function then keeps its replicas.
package setbacks
