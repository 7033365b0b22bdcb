// Package loader measures thaw's downloads beside azblob, curl and aria2c, from an emulated Azure
// blob server to disk, many nodes that load from each other, and a start of thaw's engine ember
// meanwhile.
//
// The server is a program of its own. It implements the part of the Blob REST API that a
// download needs, sends from the page cache with sendfile, and can behave like a real
// account: a rate per connection, a delay to the first byte, stragglers, storms of 503,
// a total rate. Blobs of any size need no storage: contents are a header and then 256
// MiB of noise repeated, so every byte of every download is known and can be compared.
//
// The ceilings are measured in the same round: the link alone (bytes received and
// discarded), the link with the disk (received and written), the disk alone, and the
// checksums alone. Ratios to a ceiling are comparable between machines.
//
// Two times are reported: until the contender ended, and until its bytes were durable.
// thaw publishes a checkpoint only then; the others leave write-back to the kernel, so
// the second time is the fair comparison. CPU time and peak memory are the contender's
// own, as the kernel counts them at its end; later write-back is not counted.
package loader
