// Package nodestore opens a node's checkpoint store on disk with what fills it (downloads from
// sources, blocks from other nodes), and lists, prefetches, verifies, pins and removes checkpoints
// in it.
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
