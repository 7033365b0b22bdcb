// Package coldstart measures the time from zero replicas to the first token, as a client
// sees it and by the platform's phases, and compares it with an earlier run: a phase
// that became slower fails the benchmark by name.
package coldstart
