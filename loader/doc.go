// Package loader brings a model's files to where an engine can open them.
//
//	plan     what the source has: names, sizes, versions, digests (one listing)
//	ranges   blocks of the files, several at once, each retried by itself,
//	         every one pinned to the version that was planned
//	verify   each block's checksum as it lands; each file's sha256, and the
//	         digest the source keeps, in one pass behind the front; the header
//	         of weights before anybody loads them
//	commit   all files at once, into the store (loader/store)
//
// A folder on this machine is used where it is: it is checked in the same way
// and copied nowhere.
//
// One staging runs per source and digest on a node. Who asks while it runs
// joins it; in another process, waits for its end and finds the result. A
// staging outlives the request that caused it and ends when the last of its
// holders releases it; what had arrived by then is taken up by the next.
//
// A checkpoint may be read while it arrives: an Arrival belongs to one plan, a
// read waits for its blocks, which go before the rest, and Whole says whether the
// staging led to the very bytes that were read.
//
// # Decisions at this door
//
// A source is listed again at every Stage, because a folder in a bucket may
// have changed; if the listing says the same versions, nothing is fetched. If
// the source cannot be reached, and only then, a checkpoint that came from it
// before is used as it is: an outage of the store of weights should not take
// down models whose weights are here. A source that says no (401, 403, 404) is
// obeyed.
//
// The first block of every file comes before the second of any, so that
// configs and tokenizers are here at once, and a file that was cut short is
// found out by its header before the rest of it has been paid for.
package loader
