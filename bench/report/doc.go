// Package report presents the results of a benchmark: medians and quantiles, tables for
// a terminal, versioned JSON, and charts as one self-contained HTML page and one SVG,
// without scripts or external files, in light and dark mode.
package report
