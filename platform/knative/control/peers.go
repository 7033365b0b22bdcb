package control

import (
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// announceDelay is how long news of who lends is gathered before it is told. Loaders come
// in crowds, when a controller has just begun or a DaemonSet is rolled out, and each
// of them would be news for all others.
const announceDelay = 200 * time.Millisecond

// peerAnnouncer tells the loaders of who else lends blocks.
type peerAnnouncer struct {
	servers func() (to []string, peers []functions.Peer) // whose loaders are there, and who lends, by ID
	send    func(node string, d controlstream.Update) bool
	wakeup  chan struct{} // capacity 1
}

func newPeerAnnouncer(lend func() ([]string, []functions.Peer), tell func(string, controlstream.Update) bool) *peerAnnouncer {
	return &peerAnnouncer{servers: lend, send: tell, wakeup: make(chan struct{}, 1)}
}

// changed says that somebody lends who did not, or has come and knows nobody.
func (p *peerAnnouncer) changed() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// Run tells until ctx ends.
func (p *peerAnnouncer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wakeup:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(announceDelay):
		}
		select { // what has come meanwhile is told now
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
