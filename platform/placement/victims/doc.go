// Package victims finds the set of replicas on one node whose eviction makes room for another
// replica at the least cost; it evicts none, and its caller computes costs and says which may go
// together. It knows the room of the node and, of each victim, what its eviction costs and frees.
package victims
