package control

import (
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// announceDelay batches changes of the peers: when a controller starts or a DaemonSet
// rolls out, loaders connect in bursts, and each is a change for all others.
const announceDelay = 200 * time.Millisecond

// peerAnnouncer sends each loader the addresses of the other block servers.
type peerAnnouncer struct {
	servers func() (to []string, peers []functions.Peer) // nodes with a connected loader, and block servers by ID
	send    func(node string, d controlstream.Update) bool
	wakeup  newest.Signal
}

func (p *peerAnnouncer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wakeup:
		}
		if !backoff.Sleep(ctx, announceDelay) {
			return nil
		}
		select { // changes during the delay are included
		case <-p.wakeup:
		default:
		}
		to, peers := p.servers()
		for _, node := range to {
			others := peers
			if i := slices.IndexFunc(peers, func(x functions.Peer) bool { return x.ID == node }); i >= 0 {
				others = slices.Concat(peers[:i], peers[i+1:])
			}
			p.send(node, controlstream.Update{Peers: &others})
		}
	}
}
