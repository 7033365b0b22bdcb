// Package loader stages models: it downloads their files from a source (bucket, hub, web, another
// node), verifies them and publishes them in the node's store; they can be read while they arrive.
//
//	plan     one listing of the source: names, sizes, versions, digests
//	fetch    blocks of the files in parallel ranges, each retried by itself and
//	         pinned to the version of the listing
//	verify   each block's checksum and digest as it arrives; the source's own digest of
//	         a file, where it names one, in one pass beside the download; the header of
//	         weights
//	commit   all files at once, into the store (loader/store)
//
// A folder on this machine is checked in the same way and used where it lies. A
// folder on another node's disk is a source like any other (PeerLocation, loader/p2p).
//
// Weights, configs, tokenizers and chat templates are staged, and the files that a
// model file names beside them (StageOptions.Files). Other names make another plan,
// so no model gets the files of another.
//
// One staging runs per source and digest on a node. Later callers join it; callers in
// another process wait for its end and find the result. A staging outlives the request
// that caused it and ends when its last holder releases it; the next staging resumes
// from the bytes that arrived.
//
// A checkpoint can be read while it arrives: an Arrival belongs to one plan, a read
// waits for its blocks, which are fetched first, and Verified reports whether the
// staging led to the very bytes that were read.
//
// # How bytes move
//
//	rangelimit             how many ranges of one source are in flight, over all its
//	                       stagings
//	queue                  the next block: those readers wait for, returned ones, the
//	                       rest in order. One request fetches a range of blocks, long
//	                       enough that the wait for its first byte does not count
//	rangeRequest           socket, piece, checksum, disk: a megabyte at a time, one
//	                       copy, so that memory does not grow with block or model
//	hedge                  a slow request gets a second one beside it (a hedge), from
//	                       its current byte on; the blocks it has not begun are returned
//	verify                 the digests of whole files that the source names, in order,
//	                       on other cores
//
// Two requests for one block share its store.Writer, which takes every byte once,
// from the first to bring it: the checksum covers what is on the disk, and the work of
// the slow request is kept. Bytes that come twice are bounded to 1 in 25.
//
// A broken range continues from the byte where it broke. Bytes that came count as
// progress: the count of attempts starts again.
//
// # Decisions
//
// Large files bypass the page cache (O_DIRECT), in pieces of a megabyte, as many at
// once as there are ranges in flight. Through the cache, a disk that takes 1.7 GB/s
// reached 0.3 to 0.6, at three times the processor time: the kernel copies every byte,
// allocates a page for it, and then blocks the writer until old pages are on the disk.
// Small files
// (store.Options.DirectFrom), partial pages and file systems without O_DIRECT use the
// cache; their write-back starts early, so that the final fsync finds little left.
//
// The kernel's read-ahead is off for parts: it would cache what was there before the
// bytes. A block that is here is read ahead as a whole.
//
// Every block is digested from memory as it lands, by the request that brings it: the
// tree digest of these (store.Tree) is the file's name in the store, and what two nodes or
// two sources agree on. Only where the source names a digest of a whole file (sha256, MD5,
// CRC), which has to be computed in order, the file is read back, behind the front of the
// download. A resume reads back what it found on the disk.
//
// A source is listed again at every Stage, because a folder in a bucket may change; if
// the versions are the same, nothing is fetched. Only if it gives no list in listingWait
// (no answer, 429, 5xx, 401, 403), an earlier checkpoint of it is used, with a warning: an
// outage of the bucket or an expired key must not take down models whose weights are here.
// Files that the source says it no longer has (404) are an error.
//
// The first block of every file comes before the second of any: configs and tokenizers
// are here at once, and a truncated file is found by its header before the rest of it
// is downloaded.
//
// It is one idea: one staging, from the plan to the publication. Its parts share the
// state of the blocks and cannot be used apart.
package loader
