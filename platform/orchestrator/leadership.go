package orchestrator

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// leadership is whether the agents obey this server, and whether their silence is to be
// believed.
type leadership struct {
	*world
	epoch            int64
	lease            time.Duration                                 // of a node
	refuse           func(f *functionState, now placement.Instant) // fails the waiters of f
	nextSilenceCheck placement.Instant                             // earliest time at which a node may be lost
	superseded       bool                                          // a newer server commands the agents
}

// noteNewerServer records whether an agent obeys a newer server.
func (l *leadership) noteNewerServer(n *nodeState, stale bool, why string) {
	if n.stale == stale {
		return
	}
	n.stale, n.AvoidUntil = stale, 0
	defer l.planner.NodeChanged(n.Node)
	if stale {
		n.AvoidUntil = math.MaxInt64
		l.event("superseded", functions.Name{}, "", n.id, "stale_epoch", why)
	}
	l.updateSuperseded()
}

// noteStaleEpoch records a refusal that means a newer server.
func (l *leadership) noteStaleEpoch(r *replicaState, result commandResult) {
	if n := l.nodes[r.Node]; n != nil && n.id == result.node && errors.Is(result.err, functions.ErrStaleEpoch) {
		l.noteNewerServer(n, true, result.err.Error())
	}
}

// updateSuperseded decides whether most agents obey a newer server. A superseded
// server reports it, sends no commands and refuses starts.
func (l *leadership) updateSuperseded() {
	stale := 0
	for _, n := range l.nodeList {
		if n.stale {
			stale++
		}
	}
	over := stale > 0 && 2*stale > len(l.nodes)
	if over == l.superseded {
		return
	}
	l.superseded = over
	if over {
		for _, f := range l.functionList { // nothing will be started for their waiters
			if f.Queued > 0 {
				l.refuse(f, l.lastTurn)
			}
		}
		l.event("superseded", functions.Name{}, "", "", "stale_epoch",
			fmt.Sprintf("%d of %d agents obey a newer server than this one, whose epoch is %d; it gives no more commands", stale, len(l.nodes),
				l.epoch))
	} else {
		l.event("commands_resumed", functions.Name{}, "", "", "", "most agents obey this server again")
	}
}

func (l *leadership) mayCommand(n *nodeState) bool { return n != nil && !n.stale && !l.superseded }

// extendSilentNodes extends the lease of nodes about to be lost, once, if most nodes are
// silent together: then this server more likely receives nothing.
func (l *leadership) extendSilentNodes(now placement.Instant) {
	if now < l.nextSilenceCheck {
		return
	}
	lease := l.lease
	quiet, remote, due := 0, 0, 0
	l.nextSilenceCheck = math.MaxInt64
	for _, n := range l.nodeList {
		if n.Here {
			continue
		}
		remote++
		if now-n.Seen > lease/2 {
			quiet++
		}
		if end := n.Seen + lease; end <= now {
			due++
		} else {
			l.nextSilenceCheck = min(l.nextSilenceCheck, end)
		}
	}
	if due == 0 || quiet < 2 || 2*quiet <= remote {
		return
	}
	given := 0
	for _, n := range l.nodeList {
		if n.Here || n.leaseExtended || now-n.Seen <= lease/2 {
			continue
		}
		n.leaseExtended = true
		n.Seen = now
		l.nextSilenceCheck = min(l.nextSilenceCheck, now+lease)
		given++
	}
	if given > 0 {
		l.event("nodes_suspicious", functions.Name{}, "", "", "recheck",
			fmt.Sprintf("%d of %d agents are silent at once; waiting %v more for %d of them", quiet, remote, lease, given))
	}
}
