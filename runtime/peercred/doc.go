// Package peercred finds the process id of the peer that dialled a unix socket, from the kernel
// (SO_PEERCRED, SO_PEERPIDFD), and tells whether it still runs; it decides nothing about access.
// SO_PEERPIDFD exists since Linux 6.5; the package is for Linux alone.
package peercred
