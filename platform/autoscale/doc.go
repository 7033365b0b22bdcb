// Package autoscale computes how many replicas a function should have: a Load averages its requests
// in flight as Knative's autoscaler does, and Settings.Want adds waiting requests, leases and the
// model file's bounds; it starts none and chooses no node. It is pure: loads and times go in,
// numbers come out.
//
// A Load averages the requests in flight over a long and a short window and derives
// from them how many replicas are needed, and how many must not be scaled down yet, as
// Knative's autoscaler does: rate limits, and a panic that keeps the replicas of a burst.
// Want adds waiting requests, leases and the bounds of the model file. Package placement
// decides where the replicas run.
package autoscale
