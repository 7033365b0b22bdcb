// Package coldstart computes the phases, progress and remaining time of a replica's cold start
// from its reports and the times of earlier starts, and keeps the newest 1,000 in memory; it
// starts nothing.
package coldstart
