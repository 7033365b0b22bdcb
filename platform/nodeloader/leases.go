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
	// adoptedFor is how long a new loader keeps the leases of the last one: shims dial
	// again within seconds.
	adoptedFor    = time.Minute
	maxLeasesFile = 1 << 20
)

// addLease counts one more lease of a checkpoint; the first one is stored.
func (d *Daemon) addLease(digest string) {
	d.mu.Lock()
	d.leased[digest]++
	first := d.leased[digest] == 1
	d.mu.Unlock()
	if first {
		d.writeLeases()
	}
}

func (d *Daemon) removeLease(digest string) {
	d.mu.Lock()
	d.leased[digest]--
	last := d.leased[digest] <= 0
	if last {
		delete(d.leased, digest)
	}
	ending := d.endingLocked()
	d.mu.Unlock()
	if last && !ending { // at the end the file is kept for the next loader
		d.writeLeases()
	}
}

// writeLeases writes the leased digests for the next loader. Without the file that loader
// cannot protect them until the pods have reconnected.
func (d *Daemon) writeLeases() {
	d.leaseFile.Lock()
	defer d.leaseFile.Unlock()
	d.mu.Lock()
	held := slices.AppendSeq([]string{}, maps.Keys(d.leased))
	d.mu.Unlock()
	slices.Sort(held)
	if err := d.writeState(leasesFile, held); err != nil {
		d.log.Warn("the leases of pods cannot be stored", "error", err)
	}
}

// adoptLeases acquires what pods held at the previous loader, until forget is called.
func (d *Daemon) adoptLeases() (dropLeases func()) {
	var held []string
	if err := d.readState(leasesFile, maxLeasesFile, &held); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			d.log.Warn("the leases of pods cannot be read", "error", err)
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
			d.log.Warn("a checkpoint that a pod held has been removed", "digest", digest, "error", err)
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
