package nodeloader

import (
	"errors"
	"log/slog"
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

// leaseTable counts the leases that pods have, and stores the leased digests: the next
// loader holds them until the pods have reconnected.
type leaseTable struct {
	folder stateFolder
	ending func() bool // this loader is ending: the file stays for the next one
	log    *slog.Logger
	file   sync.Mutex // held while the file is written

	mu     sync.Mutex
	counts map[string]int // by digest
}

// add counts one more lease of a checkpoint; the first one is stored.
func (t *leaseTable) add(digest string) {
	t.mu.Lock()
	t.counts[digest]++
	first := t.counts[digest] == 1
	t.mu.Unlock()
	if first {
		t.write()
	}
}

func (t *leaseTable) remove(digest string) {
	t.mu.Lock()
	t.counts[digest]--
	last := t.counts[digest] <= 0
	if last {
		delete(t.counts, digest)
	}
	t.mu.Unlock()
	if last && !t.ending() {
		t.write()
	}
}

// write stores the leased digests. Without the file the next loader cannot protect them
// until the pods have reconnected.
func (t *leaseTable) write() {
	t.file.Lock()
	defer t.file.Unlock()
	t.mu.Lock()
	held := slices.AppendSeq([]string{}, maps.Keys(t.counts))
	t.mu.Unlock()
	slices.Sort(held)
	if err := t.folder.write(leasesFile, held); err != nil {
		t.log.Warn("the leases of pods cannot be stored", "error", err)
	}
}

// adopt acquires what pods held at the previous loader, until drop is called.
func (t *leaseTable) adopt(checkpoints *store.Store) (drop func()) {
	var held []string
	if err := t.folder.read(leasesFile, maxLeasesFile, &held); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			t.log.Warn("the leases of pods cannot be read", "error", err)
		}
		return func() {}
	}
	leases := map[string]*store.Lease{}
	for _, digest := range held {
		if leases[digest] != nil {
			continue
		}
		_, lease, err := checkpoints.Acquire(digest)
		if err != nil {
			t.log.Warn("a checkpoint that a pod held has been removed", "digest", digest, "error", err)
			continue
		}
		leases[digest] = lease
		t.add(digest)
	}
	return sync.OnceFunc(func() {
		for digest, lease := range leases {
			lease.Release()
			t.remove(digest)
		}
	})
}
