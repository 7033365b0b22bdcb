// Package nodestore is a node's checkpoint store with everything that fills it, and what
// is known of the machine.
//
//	store     checkpoints on the disk (loader/store), below DATA/store
//	loader    brings them, from every source there is (Sources)
//	peers     other nodes, which exchange blocks (Peering)
//	tiers     how much of a checkpoint is in memory, and reading it there
//	hf        DATA/hf shows checkpoints of Hugging Face in its own cache layout
//	machine   how much memory there is, and which host this is
//
// An agent has one, and so has the loader of a node in a cluster; the cache verbs open
// one without either.
package nodestore
