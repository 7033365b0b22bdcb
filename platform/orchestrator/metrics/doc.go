// Package metrics counts what the control loop did, by metric and labels, and yields the metrics
// of nodes from their last heartbeats; package telemetry exports both to Prometheus.
package metrics
