package nodeloader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

const (
	ownersFile = "owners.json"
	// ownersWait is how long a pod waits for the controller's word on whose it is. The
	// controller knows it before the pod's first container is made.
	ownersWait    = 10 * time.Second
	maxOwnersFile = 16 << 20
)

// setOwners takes over what the controller says of whose the pods are, and writes it down:
// the next loader goes by it before a controller has spoken.
func (d *Daemon) setOwners(o *controlstream.Owners) {
	d.mu.Lock()
	same := d.owners != nil && maps.EqualFunc(d.owners.Allow, o.Allow, slices.Equal) && maps.Equal(d.owners.Pods, o.Pods)
	d.owners = o
	close(d.ownersChanged)
	d.ownersChanged = make(chan struct{})
	d.mu.Unlock()
	if same {
		return
	}
	if err := d.writeState(ownersFile, o); err != nil {
		d.log.Warn("whose the node's pods are cannot be written down", "error", err)
	}
}

// loadOwners is what the loader before this one was told. Where it cannot be read no team
// may have anything until the controller has spoken.
func (d *Daemon) loadOwners() {
	var o controlstream.Owners
	if err := d.readState(ownersFile, maxOwnersFile, &o); errors.Is(err, os.ErrNotExist) {
		return
	} else if err != nil {
		d.log.Warn("whose the node's pods are is not known; nothing is staged for them until the controller says it", "error", err)
		o = controlstream.Owners{Said: true, Allow: map[string][]string{"": {}}}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owners = &o
}

// checkPod is nil where a pod may have a source staged, as far as its team is concerned.
// An unknown pod waits for the controller's owners while any team has an allow-list.
func (d *Daemon) checkPod(ctx context.Context, uid, src string) *controlstream.Failed {
	late := time.NewTimer(ownersWait)
	defer late.Stop()
	for {
		d.mu.Lock()
		o, heard := d.owners, d.ownersChanged
		d.mu.Unlock()
		if o == nil || len(o.Allow) == 0 {
			return nil
		}
		if team, known := o.Pods[uid]; known {
			return d.checkTeam(team, src)
		}
		select {
		case <-heard:
		case <-late.C:
			return refusal("the controller has not said whose pod this is, and teams have lists of what they may have here", "kubectl logs -n thaw-system deploy/thaw-controller says whether it is connected; the pod is started again by itself")
		case <-ctx.Done():
			return refusal(ctx.Err().Error(), "")
		}
	}
}

// checkTeam is nil where a team may have a source, or why not.
func (d *Daemon) checkTeam(team, src string) *controlstream.Failed {
	d.mu.Lock()
	o := d.owners
	d.mu.Unlock()
	if o == nil {
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
	for _, a := range list {
		if isBelow(location, strings.TrimRight(a, "/")) {
			return nil
		}
	}
	return refusal(fmt.Sprintf("%s is not among the sources that namespace %s may have", location, team), "its annotation thaw.dev/allow-source, which who runs the cluster writes, names them")
}
