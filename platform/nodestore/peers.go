package nodestore

import (
	"net"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
)

// Peering is how a node shares the downloading of bytes with others. All requests between
// nodes carry the join token.
type Peering struct {
	// Listener serves blocks to other nodes; nil: this node serves none.
	Listener net.Listener
	// URL under which others reach the listener.
	URL   string
	Token string
	// Nodes are URLs of others that are known from the start; the server names
	// more.
	Nodes []string
	// SharedFolder reports whether a folder of this machine is a model's, and which files
	// beside the listed ones are staged of it; nil: no folder is served.
	SharedFolder func(folder string) (files []string, ok bool)
}

func (p *Peering) folders() *p2p.SharedFolders {
	if p.SharedFolder == nil {
		return nil
	}
	return &p2p.SharedFolders{Disk: dir.Source{}, Shared: func(folder string) (source.Globs, bool) { return p.SharedFolder(folder) }}
}

// peerList are the other nodes, as they are known now.
type peerList struct {
	fixed []p2p.Peer

	mu         sync.Mutex // guards told
	discovered []p2p.Peer
}

func newPeerList(urls []string) *peerList {
	o := &peerList{}
	for _, u := range urls {
		o.fixed = append(o.fixed, p2p.Peer{URL: u})
	}
	return o
}

// nodes may be kept and not changed.
func (o *peerList) nodes() []p2p.Peer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(o.discovered[:len(o.discovered):len(o.discovered)], o.fixed...)
}

func (o *peerList) setDiscovered(list []functions.Peer) {
	told := make([]p2p.Peer, 0, len(list))
	for _, p := range list {
		told = append(told, p2p.Peer{ID: p.ID, URL: p.URL})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discovered = told
}
