// Package metrics counts what the control loop did, and yields the metrics of nodes from their
// last heartbeats.
package metrics
