// Package report turns what a bench measured into what people and programs
// read: medians and quantiles, tables for a terminal, JSON with a version, and
// pictures: one self-contained HTML page and one SVG, with no script and nothing
// fetched, readable by day and by night.
package report
