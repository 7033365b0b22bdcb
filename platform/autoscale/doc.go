// Package autoscale computes how many replicas a function's load needs: a Load averages its requests
// in flight as Knative's autoscaler does, and AtOnce counts waiting requests; it starts none and
// chooses no node. It is pure: loads and times go in, numbers come out.
//
// A Load averages the requests in flight over a long and a short window and derives
// from them how many replicas are needed, and how many must not be scaled down yet, as
// Knative's autoscaler does: rate limits, and a panic that keeps the replicas of a burst.
// Package placement adds leases and the bounds of the model file, and decides where the
// replicas run.
package autoscale
