//go:build !linux

package httpserver

// watcher exists on Linux only; elsewhere every watch is a reader that looks
// ahead.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, nil }

func watchConn(*conn) (*watcher, uint64) { return nil, 0 }

func (*watcher) close()               {}
func (*watcher) remove(*conn, uint64) {}
