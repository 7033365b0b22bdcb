// Package report writes the results of benchmarks as JSON and Markdown: medians and quantiles,
// which goals were met, and the command, commit and machine. It also makes the chart of a cold
// start's phases, as SVG or one self-contained HTML page without scripts or external files, in
// a light and a dark mode.
package report
