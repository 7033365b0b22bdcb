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
	heldName = "held.json"
	// heldFor is how long a new loader holds what pods held of the last one: a shim
	// dials again within seconds.
	heldFor = time.Minute
	maxNote = 1 << 20
)

// hold notes that a checkpoint is held once more.
func (d *Daemon) hold(digest string) {
	d.mu.Lock()
	d.leased[digest]++
	first := d.leased[digest] == 1
	d.mu.Unlock()
	if first {
		d.note()
	}
}

// unhold is its end.
func (d *Daemon) unhold(digest string) {
	d.mu.Lock()
	d.leased[digest]--
	last := d.leased[digest] <= 0
	if last {
		delete(d.leased, digest)
	}
	ending := d.over()
	d.mu.Unlock()
	if last && !ending { // pods hold on to it
		d.note()
	}
}

// note writes down what is held, for the next loader. It is no harm if that fails
// but the one that the next loader is told of.
func (d *Daemon) note() {
	d.noting.Lock()
	defer d.noting.Unlock()
	d.mu.Lock()
	held := slices.AppendSeq([]string{}, maps.Keys(d.leased))
	d.mu.Unlock()
	slices.Sort(held)
	if err := d.write(heldName, held); err != nil {
		d.log.Warn("which checkpoints pods hold cannot be written down", "error", err)
	}
}

// adopt holds what pods held of the loader before this one, until forget.
func (d *Daemon) adopt() (forget func()) {
	var held []string
	if err := d.read(heldName, maxNote, &held); err != nil {
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
		_, lease, err := d.o.Shelf.Store().Acquire(digest)
		if err != nil {
			d.log.Warn("what a pod held is not there any more", "digest", digest, "error", err)
			continue
		}
		leases[digest] = lease
		d.hold(digest)
	}
	return sync.OnceFunc(func() {
		for digest, lease := range leases {
			lease.Release()
			d.unhold(digest)
		}
	})
}
