// Package tcp reads and writes TCP connections with system calls that Go's scheduler does not
// see.
//
// Sockets are non-blocking, so such a call never waits. Package net announces it all the same,
// and then the scheduler's monitor wakes up every 20 µs, and starts another thread for the
// work of one that the kernel has preempted in a call: half of a loaded gateway's context
// switches.
package tcp
