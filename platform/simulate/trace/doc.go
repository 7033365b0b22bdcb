// Package trace reads who asked for which model when, and makes such lists up.
//
// A trace is read as a stream: ten million requests never stand in memory, and
// an error names the file and the line where the stream ended.
package trace
