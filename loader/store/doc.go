// Package store keeps checkpoints on the node's disk.
//
//	DATA/store/
//	  lock                        held while links are made or removed, never while bytes move
//	  blobs/sha256/ab/ab12…       every file once, by its content, read-only
//	  checkpoints/<digest>/       published in one rename
//	      manifest.json           what it is and where it came from
//	      lease                   shared lock = in use; exclusive lock = being evicted
//	      pin                     there: not evicted (Pin)
//	      files/…                 hard links to blobs under the files' own names
//	  sources/<key>.json          which checkpoint a source's plan led to
//	  parts/<key>/                one staging: lock, plan, and per file a part and its journal
//	  coming/<sha256>             lock of the staging that brings this very file
//	  trash/                      what an eviction has taken out and not yet deleted
//	  links.json                  the loader's: what links to sources were like
//
// A checkpoint exists when its folder does, and its folder appears complete or
// not at all. Until then everything lives under parts, and a crash at any
// instruction leaves a part that the next Begin picks up: the journal says
// which blocks were written, and each is read back and compared with its
// checksum before it is believed, because a journal may reach the disk before
// the data it speaks of.
//
// Hard links, not symbolic ones: a checkpoint's folder can be mounted into a
// container by itself, a blob's link count says whether anyone still needs it,
// and no name in the store can point out of it.
//
// Leases and stagings are file locks (flock), so that a process that dies lets
// go of them, whatever killed it, and so that several processes on a node
// share one store without a daemon.
//
// A file whose digest is known before it comes is brought by one staging, and
// published as a blob as soon as it is whole; other stagings that want it,
// under another name or from another place, wait for that and link it.
//
// # Room
//
// What a staging will take is reserved (fallocate) before its first byte is
// asked for. More than the high mark of the budget, and the checkpoints used
// longest ago go until the low mark, except those that are leased or pinned;
// then unfinished stagings that nobody is at work on. Nothing goes for a
// staging that cannot fit even then.
//
// # Past the page cache
//
// Whole pages of a large file (Options.DirectFrom) are written by O_DIRECT into the
// reserved room, the rest of it through the cache; a file system that does not
// know it gets all through the cache. The two never meet in a page: a block has
// one writer and ends where a page does. A reader of the part sees both, as it
// reads blocks that are here only, and no more than those (ReadAhead).
//
// # The journal
//
// It says of every block what came of it, megabyte by megabyte, and its
// checksum. After a kill a staging reads back what the journal speaks of and
// goes on in the middle of its blocks.
//
// # What a commit asks of the disk
//
//	fsync(part)                             every byte of every file
//	link(part, blob), fsync(blobs/…)
//	mkdir, link, write manifest, fsync      under checkpoints/.new-…
//	rename(.new-…, <digest>), fsync(checkpoints)
//	write, fsync, rename sources/<key>.json, fsync(sources)
//	unlink the parts
//
// Parts are linked, not moved, so that a crash between any two of these finds
// them where they were. What it cannot repair: a disk that acknowledges an
// fsync and loses it. Verify finds that later and takes the file out.
package store
