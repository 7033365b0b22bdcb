// Package mount shows files that are still arriving as a folder of plain files,
// so that an engine that knows nothing of it can open, read and map them: a
// read of bytes that are not here waits for exactly those.
//
//	New      the folder, through FUSE: Linux, where /dev/fuse is there and this
//	         process may mount
//	Serve    the same files over HTTP on a unix socket, with ranges that wait,
//	         for an engine that can ask; wherever there is no FUSE
//	Sweep    takes away what a process that died left mounted
//
// # Decisions at this door
//
// The tree is fixed and read-only: names, sizes and times never change, so the
// kernel may keep entries, attributes and pages for as long as it likes, and
// each byte is asked for once. Opening costs no message (the kernel is told
// that there is no open), closing neither: an agent that forks while it has a
// file of its own mount open must not wait for itself.
//
// Every wait ends: with the bytes, with the staging (EIO, and the cause in our
// log), with a signal to the reader (EINTR), or with Close.
//
// /dev/fuse is opened to close on exec: an engine or a keeper that inherited it
// would keep the mount alive, and its readers waiting, after this process died.
// When it dies, readers get ENOTCONN, and Sweep of the next process clears the
// name away.
package mount
