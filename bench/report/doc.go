// Package report writes results of benchmarks as JSON, Markdown and HTML: tables, quantiles, goals
// met or missed, commit and machine, and the SVG chart of a cold start's phases; it measures
// nothing. The HTML page is self-contained, without scripts or external files, in a light and a
// dark mode.
package report
