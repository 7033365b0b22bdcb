// Package mount gives an engine files that are still downloading, as a read-only folder (FUSE) or
// over HTTP on a unix socket: a read waits for exactly its bytes; the loader downloads them. An
// unmodified engine can read the folder.
//
//	New      the folder, through FUSE: Linux, where /dev/fuse is there and this
//	         process may mount
//	Serve    the same files over HTTP on a unix socket, with ranges that wait,
//	         for an engine that can ask; wherever there is no FUSE
//	Sweep    unmounts what a dead process left mounted
//
// # Decisions
//
// The tree is fixed and read-only: names, sizes and times never change, so the
// kernel may keep entries, attributes and pages for as long as it likes, and
// each byte is requested once. Open and close cost no message (both answer ENOSYS): an
// agent that forks while it has a file of its own mount open must not wait for itself.
//
// Every wait ends: with the bytes, with the staging (EIO, and the cause in our
// log), with a signal to the reader (EINTR), or with Close.
//
// /dev/fuse is opened with close-on-exec: an engine or a supervisor that inherited it
// would keep the mount alive, and its readers waiting, after this process died. When it
// dies, readers get ENOTCONN, and Sweep of the next process unmounts the folder.
package mount
