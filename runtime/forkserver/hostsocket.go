package forkserver

import "path/filepath"

// HostSocket is the socket of a node's interpreter, below the folder of the node that pods
// mount. Its folder is root's.
func HostSocket(store string) string { return filepath.Join(store, "warm", "s") }
