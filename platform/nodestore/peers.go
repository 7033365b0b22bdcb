package nodestore

import (
	"net"
	"slices"
	"sync/atomic"

	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
)

// Peering configures the exchange of blocks with other nodes.
type Peering struct {
	// Listener serves blocks to other nodes; nil: this node serves none.
	Listener net.Listener
	// URL at which other nodes reach the listener.
	URL string
	// TLS of the exchange; nil is plain HTTP, for tests.
	TLS *p2p.TLS
	// Nodes are URLs of other nodes known from the start; the server adds more.
	Nodes []string
	// SharedFolder reports whether a folder of this machine is a model's, and which extra
	// files of it are staged; nil: no folder is served.
	SharedFolder func(folder string) (files []string, ok bool)
}

func (p *Peering) folders() *p2p.SharedFolders {
	if p.SharedFolder == nil {
		return nil
	}
	return &p2p.SharedFolders{Disk: dir.Source{}, Shared: func(folder string) (source.Globs, bool) { return p.SharedFolder(folder) }}
}

// peerList is the list of other nodes: the configured and the discovered ones.
type peerList struct {
	fixed      []p2p.Peer
	discovered atomic.Pointer[[]p2p.Peer]
}

// nodes returns a list that may be kept but not changed.
func (l *peerList) nodes() []p2p.Peer {
	if discovered := l.discovered.Load(); discovered != nil {
		return slices.Concat(*discovered, l.fixed)
	}
	return l.fixed
}
