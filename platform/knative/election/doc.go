// Package election elects the leading controller by a Lease, with client-go's
// leaderelection. It adds what thaw fences its writes with: the number of the term (the
// epoch), whether the lease is surely still held by the monotonic clock, and the leader's
// address for those that reached another controller.
package election
