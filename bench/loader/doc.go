// Package loader measures how bytes come from a blob store to the disk: thaw
// beside azblob's DownloadFile, curl and aria2c, from one server, each in a
// process of its own, in interleaved rounds.
//
// The server is a program of its own too. It speaks as much of the Blob REST
// API as a download needs, sends out of the page cache with sendfile, and can
// be shaped into what a real account looks like: a rate per connection, a delay
// to the first byte, stragglers, storms of 503, a bound on everything together.
// A blob of any size costs it nothing: contents are a header and then a quarter
// of a gigabyte of noise over and over, so every byte of every download can be
// said in advance, and is compared.
//
// Beside the contenders stand the ceilings of the same minute: the link alone
// (bytes received and dropped), the link onto the disk (received and written,
// nothing else), the disk alone, and the checksums alone. A ratio to a ceiling
// is what carries to another machine.
//
// Two times are reported: until the contender ended, and until its bytes were on the
// disk. thaw publishes a checkpoint only then; the others leave writing back to the
// kernel, so the second time is the fair comparison. Processor time and peak memory
// are the contender's own, as the kernel counts them at its end; what the kernel
// spends on later write-back is not counted.
package loader
