// Package pagecache estimates how many bytes of given files are in the kernel's page cache, has the
// kernel read files into it in advance, and says how much memory may be used for that.
//
//	Resident   how many bytes of files are in memory
//	ReadAhead  have the kernel read files, in the order in which they are loaded
//
// # Decisions
//
// A measurement must be cheap, because every node measures every model again and again:
// at most 128 windows of 1 MiB, spread evenly, so it takes as long for 100 GB as for
// 1 GB, with an error of about a percent. cachestat(2) answers without a mapping;
// kernels before 6.5 are asked with mincore(2) on a mapping of the window.
//
// Reading ahead is advice to the kernel: no byte is copied into this process, and the
// kernel drops it when memory is short. Files are read from the first on, as engines
// load them, up to the caller's limit and never more than the available memory: that
// would evict what was just read.
package pagecache
