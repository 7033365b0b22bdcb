package forkserver

import "path/filepath"

// HostSocket is the socket of a node's interpreter, below the folder of sockets that pods
// mount. Its own folder is root's.
func HostSocket(sockets string) string { return filepath.Join(sockets, "warm", "s") }
