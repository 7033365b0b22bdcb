package nodeloader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

const (
	ownersFile = "owners.json"
	// ownersWait is how long a pod of unknown owner waits for the controller's list. The
	// controller knows the owner before the pod's first container is created.
	ownersWait = 10 * time.Second
	// firstOwnersWait is how long a pod waits for the first list of this node: the time in
	// which another controller takes over.
	firstOwnersWait = 30 * time.Second
	maxOwnersFile   = 16 << 20
)

// podOwners are the owners of the node's pods and the sources that these may have, as the
// controller sent them last.
type podOwners struct {
	folder   stateFolder
	governed bool // there is a controller, whose lists bound the teams' sources
	log      *slog.Logger

	mu      sync.Mutex
	last    *controlstream.Owners // nil: not known yet
	changed chan struct{}         // closed and replaced when last changes
}

// set applies and stores the owners: the next loader uses them until its controller sends
// newer ones.
func (p *podOwners) set(o *controlstream.Owners) {
	p.mu.Lock()
	same := p.last != nil && maps.EqualFunc(p.last.Allow, o.Allow, slices.Equal) && maps.Equal(p.last.Pods, o.Pods)
	p.last = o
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if same {
		return
	}
	if err := p.folder.write(ownersFile, o); err != nil {
		p.log.Warn("the owners of the node's pods cannot be stored", "error", err)
	}
}

// load reads the owners that the previous loader stored. If the file is invalid, no
// team may stage anything until the controller has sent them.
func (p *podOwners) load() {
	var o controlstream.Owners
	if err := p.folder.read(ownersFile, maxOwnersFile, &o); errors.Is(err, os.ErrNotExist) {
		return
	} else if err != nil {
		p.log.Warn("the owners of the node's pods cannot be read; nothing is staged for them until the controller sends them", "error", err)
		o = controlstream.Owners{Said: true, Allow: map[string][]string{"": {}}}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = &o
}

// checkPod returns nil if the pod's team may stage a source, else the refusal. A pod waits
// for the controller's first list of owners, and, while any team has a list of sources, for
// its own owner.
func (p *podOwners) checkPod(ctx context.Context, uid, src string) *controlstream.Failed {
	began := time.Now()
	for {
		p.mu.Lock()
		o, changed := p.last, p.changed
		p.mu.Unlock()
		wait, problem := ownersWait, "the owner of this pod is not known yet, and namespaces have allow-lists of sources"
		switch {
		case o == nil && !p.governed:
			return nil
		case o == nil:
			wait, problem = firstOwnersWait,
				"this node's loader has not heard from the controller yet, so it does not know which sources this pod's namespace may have"
		case len(o.Allow) == 0:
			return nil
		default:
			if team, known := o.Pods[uid]; known {
				return p.checkTeam(team, src)
			}
		}
		select {
		case <-changed:
		case <-time.After(time.Until(began.Add(wait))):
			return refusal(problem,
				"kubectl logs -n thaw-system deploy/thaw-controller says whether it is connected; the pod is started again by itself")
		case <-ctx.Done():
			return refusal(ctx.Err().Error(), "")
		}
	}
}

// checkTeam returns nil if a team may stage a source, else the refusal.
func (p *podOwners) checkTeam(team, src string) *controlstream.Failed {
	p.mu.Lock()
	o := p.last
	p.mu.Unlock()
	switch {
	case o == nil && p.governed:
		return refusal("the controller has not sent the namespaces' allow-lists of sources yet", "")
	case o == nil:
		return nil
	}
	list, has := o.Allow[team]
	if !has {
		return nil
	}
	_, location, err := loader.Locate(src, "")
	if err != nil {
		return failure(err)
	}
	if isListed(location, list) {
		return nil
	}
	return refusal(fmt.Sprintf("%s is not among the sources that namespace %s may have", location, team),
		"its annotation thaw.dev/allow-source, which who runs the cluster writes, names them")
}
