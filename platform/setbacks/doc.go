// Package setbacks counts failed starts and early evictions of a function, and computes the
// pause before the next start and how long the function then keeps its replicas.
package setbacks
