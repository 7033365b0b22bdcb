// Package nodestore opens a node's store of checkpoints with everything that fills it: the
// loader, its sources, and the exchange of blocks with other nodes.
//
//	store     checkpoints on the disk (loader/store), below DATA/store
//	loader    downloads them from every kind of source (Sources)
//	peers     other nodes, with which blocks are exchanged (Peering)
//	tiers     how much of a checkpoint is in memory, and reading it there
//	machine   the host's memory and identity
//
// An agent opens a store, and so does the loader of a cluster's node; the cache verbs open
// one without either.
package nodestore
