package control

import (
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// gather is how long news of who lends is gathered before it is told. Loaders come
// in crowds, when a controller has just begun or a DaemonSet is rolled out, and each
// of them would be news for all others.
const gather = 200 * time.Millisecond

// peering tells the loaders of who else lends blocks.
type peering struct {
	lend func() (to []string, peers []functions.Peer) // whose loaders are there, and who lends, by ID
	tell func(node string, d controlstream.Down) bool
	ring chan struct{} // capacity 1
}

func newPeering(lend func() ([]string, []functions.Peer), tell func(string, controlstream.Down) bool) *peering {
	return &peering{lend: lend, tell: tell, ring: make(chan struct{}, 1)}
}

// changed says that somebody lends who did not, or has come and knows nobody.
func (p *peering) changed() {
	select {
	case p.ring <- struct{}{}:
	default:
	}
}

// Run tells until ctx ends.
func (p *peering) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ring:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gather):
		}
		select { // what has come meanwhile is told now
		case <-p.ring:
		default:
		}
		to, peers := p.lend()
		for _, node := range to {
			others := peers
			if i := slices.IndexFunc(peers, func(x functions.Peer) bool { return x.ID == node }); i >= 0 {
				others = slices.Concat(peers[:i], peers[i+1:])
			}
			p.tell(node, controlstream.Down{Peers: &others})
		}
	}
}
