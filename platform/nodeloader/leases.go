package nodeloader

import (
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/store"
)

const (
	leasesFile = "held.json"
	// adoptedFor is how long a new loader holds what pods held of the last one: a shim
	// dials again within seconds.
	adoptedFor    = time.Minute
	maxLeasesFile = 1 << 20
)

// addLease notes that a checkpoint is held once more.
func (d *Daemon) addLease(digest string) {
	d.mu.Lock()
	d.leased[digest]++
	first := d.leased[digest] == 1
	d.mu.Unlock()
	if first {
		d.writeLeases()
	}
}

// removeLease is its end.
func (d *Daemon) removeLease(digest string) {
	d.mu.Lock()
	d.leased[digest]--
	last := d.leased[digest] <= 0
	if last {
		delete(d.leased, digest)
	}
	ending := d.endingLocked()
	d.mu.Unlock()
	if last && !ending { // pods hold on to it
		d.writeLeases()
	}
}

// writeLeases writes down what is held, for the next loader. It is no harm if that fails
// but the one that the next loader is told of.
func (d *Daemon) writeLeases() {
	d.leaseFile.Lock()
	defer d.leaseFile.Unlock()
	d.mu.Lock()
	held := slices.AppendSeq([]string{}, maps.Keys(d.leased))
	d.mu.Unlock()
	slices.Sort(held)
	if err := d.writeState(leasesFile, held); err != nil {
		d.log.Warn("which checkpoints pods hold cannot be written down", "error", err)
	}
}

// adoptLeases holds what pods held of the loader before this one, until forget.
func (d *Daemon) adoptLeases() (forget func()) {
	var held []string
	if err := d.readState(leasesFile, maxLeasesFile, &held); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			d.log.Warn("which checkpoints pods hold is not known", "error", err)
		}
		return func() {}
	}
	leases := map[string]*store.Lease{}
	for _, digest := range held {
		if leases[digest] != nil {
			continue
		}
		_, lease, err := d.o.Store.Checkpoints().Acquire(digest)
		if err != nil {
			d.log.Warn("what a pod held is not there any more", "digest", digest, "error", err)
			continue
		}
		leases[digest] = lease
		d.addLease(digest)
	}
	return sync.OnceFunc(func() {
		for digest, lease := range leases {
			lease.Release()
			d.removeLease(digest)
		}
	})
}
