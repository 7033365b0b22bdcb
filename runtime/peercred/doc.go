// Package peercred identifies the process at the other end of a unix socket by the kernel's
// credentials (SO_PEERCRED and, since Linux 6.5, SO_PEERPIDFD). It is for Linux alone.
package peercred
