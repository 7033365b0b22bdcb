// Package telemetry declares every metric of the programs and exports them to
// Prometheus. No other package imports its client library.
//
// The packages that measure do not import this one. A counter or histogram of a hot path
// is a function value that [Registry.Series] resolves once; everything else is a
// [Source], which yields present values at each scrape.
package telemetry
