// Package metrics counts what becomes of the requests of each function. The metrics are
// declared elsewhere; here are the series of one function, resolved once.
package metrics
