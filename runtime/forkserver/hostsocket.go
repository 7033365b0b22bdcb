package forkserver

import "path/filepath"

// HostSocket is the socket of an interpreter that a node lends to its pods, below the
// folder of the node that they mount. Its folder is root's.
func HostSocket(store string) string { return filepath.Join(store, "warm", "s") }
