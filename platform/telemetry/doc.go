// Package telemetry declares every metric of thaw's programs, and serves them in Prometheus'
// format from counters and from functions that are called at each scrape; it has no traces and no
// logs. No other package imports Prometheus' client library.
//
// The packages that measure do not import this one. A counter or histogram of a hot path
// is a function value that [Registry.Series] resolves once; everything else is a
// [Source], which yields present values at each scrape.
package telemetry
