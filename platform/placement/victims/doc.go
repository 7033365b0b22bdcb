// Package victims finds the replicas on one node whose eviction makes room for another
// replica at the least cost. It knows the room of the node and, of each victim, what its
// eviction costs and frees; which victims may be evicted together is the caller's rule.
package victims
