//go:build !linux

package httpserver

import "net"

// watcher exists on Linux only; elsewhere every watch is a reader that looks
// ahead.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, nil }

func watchConn(*connState) (*watcher, uint64) { return nil, 0 }

func (*watcher) close()                  {}
func (*watcher) remove(net.Conn, uint64) {}
