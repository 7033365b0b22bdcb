// Package store keeps checkpoints (the files of models) on the node's disk, shared by its
// processes: each verified file once by its digest, parts of downloads that resume, leases (locks
// on checkpoints in use), pins, and eviction of the least recently used; it downloads nothing.
//
//	DATA/store/
//	  lock                        held while links are made or removed, never while bytes move
//	  blobs/tree/ab/ab12…         every file once, by its tree digest, read-only
//	  checkpoints/<digest>/       published in one rename
//	      manifest.json           what it is and where it came from
//	      lease                   shared lock = in use; exclusive lock = being evicted
//	      pin                     there: not evicted (SetPin)
//	      files/…                 hard links to blobs under the files' own names
//	  sources/<key>.json          which checkpoint a source's plan led to
//	  known/<sha256>-<block>      the tree digest of a file whose sha256 its source names
//	  parts/<key>/                one staging: lock, plan, and per file a part and its journal
//	  coming/<digest>             lock of the staging that fetches this very file
//	  trash/                      renamed away by an eviction, to be deleted
//	  links.json                  the loader's measurements of sources
//
// A checkpoint exists when its folder does, and its folder appears complete or not at
// all. Until then everything lives under parts, and a crash at any instruction leaves a
// part that the next Claim resumes: the journal records which blocks were written, and
// each is read back and compared with its checksum, because a journal may reach the
// disk before its data.
//
// Hard links, not symbolic ones: a checkpoint's folder can be mounted into a
// container by itself, a blob's link count tells whether it is still needed, and no
// name in the store can point out of it.
//
// Leases and stagings are file locks (flock): a process that dies releases them, and
// several processes on a node share one store without a daemon.
//
// A file whose digest is known before it arrives is fetched by one staging, and
// published as a blob as soon as it is complete; other stagings that need it, under
// another name or from another place, wait for that and link it.
//
// # Digests
//
// A file is named by a tree digest: its blocks are digested from memory as they land, in
// any order and on every core, and nothing is read back for it. Numbers are 8 bytes,
// little-endian:
//
//	block       BLAKE3-256 of its bytes; every block but the last has the block size (8 MiB)
//	file        hex BLAKE3-256 of "thaw tree 1\n", block size, file size, the blocks in order
//	checkpoint  "sha256:" and the hex SHA-256 of the lines "<file> <size> <name>\n", sorted
//
// So nodes that stage one model agree on its digest if they agree on the block size. The
// manifest records the block size and the format of the store. Open deletes checkpoints
// of another format that no process uses, and says so; they are staged again.
//
// # Space
//
// The bytes of a staging are reserved (fallocate) before the first is requested. Above
// the high watermark of the budget, the least recently used checkpoints are evicted
// down to the low watermark, except leased and pinned ones; then unfinished stagings
// that no process has claimed. Nothing is evicted for a staging that cannot fit even
// then.
//
// # Bypassing the page cache
//
// Whole pages of a large file (Options.DirectFrom) are written with O_DIRECT into the
// reserved space, the rest through the cache; without O_DIRECT all goes through the
// cache. The two never share a page: a block has one writer and ends at a page
// boundary. A reader of the part sees both, because it reads complete blocks only, and
// no more than those (ReadAhead).
//
// # The journal
//
// The journal records how much of each block has arrived, megabyte by megabyte, and its
// checksum. After a kill a staging reads that back and continues within its blocks.
//
// # The system calls of a commit
//
//	fsync(part)                             every byte of every file
//	link(part, blob), fsync(blobs/…)        and known/<sha256>, where the source names one
//	mkdir, link, write manifest, fsync      under checkpoints/.new-…
//	rename(.new-…, <digest>), fsync(checkpoints)
//	write, fsync, rename sources/<key>.json, fsync(sources)
//	unlink the parts
//
// Parts are linked, not moved: a crash between any two of these leaves them in place.
// A disk that acknowledges an fsync and loses it cannot be repaired; Verify finds the
// bad file later and removes it.
//
// A commit does not read the bytes back: that would cost as much as the download, and a
// block that the disk damages in the seconds before the commit is no other case than one
// damaged in the seconds after it. Both are found when an engine fails on the file, which
// has the checkpoint verified, and fetched again. Blocks that a resume finds are read back,
// since they may have been there for days.
//
// It is one idea: this layout of the disk. Staging, publishing, leases and eviction all
// rely on the same links and locks.
package store
