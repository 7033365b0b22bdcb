// Package pagecache knows how near a checkpoint's bytes are: on the disk, or in the
// page cache, from which an engine maps them at the speed of memory; and brings
// them from the one to the other before they are asked for.
//
//	Resident   how many bytes of files are in memory
//	Ahead      have the kernel read files, in the order in which they are loaded
//
// # Decisions
//
// Looking must cost next to nothing, because every node looks at every model
// again and again: a checkpoint is looked at through at most 128 windows of a
// MiB, spread evenly, so a look takes as long for 100 GB as for 1 GB and is
// right to about a percent. cachestat(2) answers without mapping anything;
// kernels before 6.5 are asked with mincore(2) on a mapping of the window.
//
// Reading ahead is advice: the kernel does it beside, without a copy into this
// process, and forgets it when memory is short. It goes through the files from
// the first, which is how engines load them; as much as the caller allows, and
// never beyond what memory has free, or it would push out what it just brought.
package pagecache
