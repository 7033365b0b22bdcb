// Package demand is the demand for functions as the platform reads it: what has changed since
// it was read last, and what is still in flight for functions that were removed.
package demand
