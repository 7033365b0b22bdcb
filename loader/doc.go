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
// and copied nowhere. One on another node's disk is a source like any, which that
// node lends (Lent, loader/p2p).
//
// Weights, configs, tokenizers and chat templates are staged, and what a model
// file names beside them (StageOptions.Files); what is left is told once. Other
// names make another plan, so no model gets the files of another.
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
// # How bytes move
//
//	pace      how many ranges are in flight: grows while that pays, tries fewer
//	          where as many bytes come with fewer, fewer at once after 429 and 503
//	link      the lanes to one source, shared by all stagings from it; nobody asks
//	          before the time a busy source named
//	habits    what links were like, from one process to the next, for a day: a
//	          download begins with the ranges that the last one ended with
//	queue     which block is next: what readers wait for, what was given back, the
//	          rest in order; a run of blocks is one request, long enough that the
//	          wait for its first byte does not count
//	stream    socket, piece, checksum, disk: a megabyte at a time, one copy, from
//	          the socket, so that memory does not grow with block or model
//	watch     a request that is slow beyond what is usual on its link gets a second
//	          one, from the byte it is at; what it has not begun is given back
//	verify    the digests of whole files, in order, behind the front, on other cores
//
// Two requests for one block share its store.Writer, which takes every byte
// once, from whoever is first with it: what the checksum speaks of is what is on
// the disk, and a slow request's work is not lost. What comes twice that way is
// bounded to one byte in twenty-five.
//
// A broken range goes on from the byte where it broke; bytes that came count as
// progress, and the tries begin anew.
//
// # Decisions at this door
//
// Large files go past the page cache (O_DIRECT), in pieces of a megabyte, as many
// at once as there are ranges in flight: some are received while others are
// written. Through it, a disk that takes 1.7 GB/s got 0.3 to 0.6, at three times
// the processor time: the kernel copies every byte, makes a page for it, and then
// holds up who writes until old ones are on the disk. The digest reads the bytes
// back through the cache, behind the front, and so leaves them where the engine
// that maps them next finds them, as far as memory goes. Where only the digest is
// waited for (a disk that reads no faster than one core hashes) the model is ready
// as soon as it was; its bytes are safe, and read by others, far sooner. Small
// files (store.Options.Past), file systems without O_DIRECT, and what does not fill
// a page take the cache; writing them to the disk begins while they come, so that
// the fsync at the end finds little left.
//
// Who reads a part while it comes has no read-ahead of the kernel's: that would
// fill the cache with what was there before the bytes. A block that is here is
// asked for as a whole when its reading begins.
//
// The sha256 of every file is taken also where the source promises none: it is
// the file's name in the store, and what two nodes or two sources agree on. It
// runs beside the link and never in its way.
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
