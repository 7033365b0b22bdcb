// Package nodestore is what a node has for its models, without the engines: the store
// with everything that fills it, and the machine it stands on.
//
//	store     checkpoints on the disk (loader/store), below DATA/store
//	loader    brings them, from every source there is (Sources)
//	circle    other nodes, which lend and borrow (Peering)
//	tiers     what of a checkpoint is in memory, and bringing it there
//	hf        DATA/hf shows what came from the hub in the hub's own layout
//	machine   how much memory there is, and which host this is
//
// An agent has one, and so has the loader of a node in a cluster; the verbs that
// look at a store open one without either.
package nodestore
