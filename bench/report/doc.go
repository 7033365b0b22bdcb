// Package report writes the results of benchmarks: medians and quantiles, tables for a
// terminal, versioned JSON, and charts as one self-contained HTML page or SVG. They have no
// scripts or external files, and a light and a dark mode.
package report
