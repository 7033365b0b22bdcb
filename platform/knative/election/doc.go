// Package election elects the leading controller by a Kubernetes Lease, numbers the terms, and says
// whether the lease is still held, so that its users can refuse a former leader's writes. It adds
// to client-go's election what thaw fences its writes with: the number of the term (the epoch),
// whether the lease is surely still held by the monotonic clock, and the leader's address for those
// that reached another controller.
package election
