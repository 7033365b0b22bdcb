// Package setbacks counts failed starts and too early evictions of a function, and computes the
// pause before its next start and how long it then keeps its replicas; the caller applies both.
package setbacks
