// Package election elects the leading controller by a Kubernetes Lease, and numbers the
// terms so that a former leader's writes are refused. It adds what thaw fences its writes
// with: the number of the term (the epoch), whether the lease is surely still held by the
// monotonic clock, and the leader's address for those that reached another controller.
package election
