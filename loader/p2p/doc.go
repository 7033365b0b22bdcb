// Package p2p lets nodes bring the same bytes together: a node that has them,
// or brings them, lends them to those that lack them, so that k cold nodes ask
// the source for each block once between them.
//
//	meet     nodes that stage one plan tell each other what they have and what
//	         they are at (a bit per block), a few times a second
//	owner    a block that nobody has or is at belongs to one of those that
//	         stage: the highest of the hashes of node and block, so all agree
//	         without asking; its owner brings it from the source
//	borrow   all others ask a node that has it or is at it, and wait there for
//	         it; who is asked brings it before what nobody waits for
//	fall     a node that does not answer, or not in time, is left out: its
//	         blocks find other owners, at worst the node that needs them
//
// # What is believed
//
// Everything between nodes carries the join token, and an answer without it is
// refused on both sides. A block comes with its checksum, which only shows that
// it came as it was sent. Whether it is the source's is decided by the digest
// of the whole file, where the source keeps one: a file that fails it is
// brought again, from the source alone, and every node that lent a block of it
// is out of this staging. Where the source keeps no digest, joined nodes are
// believed, as they are in everything else.
//
// # Folders
//
// A folder that models name as their source lies on one machine. The node there
// lends it as it is (Folders), and others stage it like any source (Borrowed):
// only folders of models, only files that are staged, each range in the version
// that was listed. What changes while it is read breaks off, and is planned anew.
// A write that leaves size and time as they were is not seen: through a mapping
// that was made before, or within one tick of the clock where the file system
// counts in ticks.
//
// # Bounds
//
// Nobody waits for a node longer than a block may take (Options.BlockTimeout), nor
// for one that has been silent (Options.PeerTimeout), nor for one that itself waits
// for another: it says so at once. Meeting waits for answers at most a
// quarter of a second before the first block is asked for: without it, nodes
// that start in the same moment would all begin alone.
package p2p
