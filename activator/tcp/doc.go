// Package tcp wraps TCP connections so that on Linux reads and writes are raw system calls without
// a notice to Go's scheduler, which saves CPU time; it neither dials nor listens.
//
// Sockets are non-blocking, so such a call never waits. Package net announces it all the same,
// and then the scheduler's monitor wakes up every 20 µs, and starts another thread for the
// work of one that the kernel has preempted in a call: half of a loaded gateway's context
// switches.
package tcp
