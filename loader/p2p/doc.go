// Package p2p exchanges blocks of models between nodes that download the same one, so that each
// block is fetched from its source once, and serves folders of models on this node's disk to
// others, which stage them like any source; it decides no placement.
//
//	announce  nodes that stage a plan tell each other a few times a second which
//	          blocks they have or are fetching, one bit per block
//	own       a block that no node has or fetches belongs to one of the staging
//	          nodes: the one with the highest hash of node and block (rendezvous
//	          hashing), so all agree without asking. Its owner fetches it
//	read      the other nodes request it from a node that has or fetches it, and wait
//	          there; the serving node fetches it before blocks without a reader
//	fail      a node that does not answer in time is left out: its blocks get other
//	          owners, at worst the node that needs them
//
// # Trust
//
// Every exchange is TLS with the certificates of two nodes (Options.TLS): both ends refuse
// all others before a name is sent. Where each node has a certificate of its own, a node
// announces itself under its own ID alone. A node reads what the others stage, and its
// blocks are staged by them.
//
// A block comes with its checksum, which only proves that it arrived as it was sent.
// Whether it is the source's is decided by the digest of the whole file, where the source
// keeps one: a file that fails it is fetched again from the source alone, and every node
// that sent a block of it is excluded from this staging as soon as that is found. What the
// excluded nodes have sent of files without a digest is fetched again too, also after a
// restart. Where the source keeps no digest of any file (blobs of Azure without MD5, files
// over plain https), nothing shows a changed block but the check of a file's form: nodes are
// trusted with the weights.
//
// # Folders
//
// A folder that models name as their source lies on one machine. That node serves it
// (SharedFolders), and others stage it like any source (PeerSource): only folders of
// models, only files that are staged, each range in the version that was listed. A file
// that changes during a read ends the read and is planned again. A write that leaves
// size and time as they were is not seen: through an older mapping, or within one clock
// tick of the file system.
//
// # Bounds
//
// A node waits for another at most as long as a block may take
// (Options.BlockTimeout), and not for one that has been silent (Options.PeerTimeout)
// or that itself waits for a third: such a node refuses at once. A staging waits at most
// 250 ms for the first answers before its first block; without that wait, nodes that
// start in the same moment would all begin alone.
package p2p
