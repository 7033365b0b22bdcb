package supervisor

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What an engine leaves outside of its processes. Python's own resource tracker
// would unlink shared memory and semaphores, but it dies with its group; so the
// supervisor notes who uses what is created in shared memory, and removes what a
// group that is gone has left. The folder of a process goes with it.

// ownerSearchAfter the creation of something in shared memory, its owner is looked
// for: not at once, for it is opened before it is mapped, and most semaphores
// are unlinked again.
var ownerSearchAfter = [...]time.Duration{3 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}

// sharedEntry is something in shared memory whose owner is not known yet.
type sharedEntry struct {
	name    string
	inode   uint64
	created time.Time
	tries   int
}

func (l sharedEntry) due() time.Time { return l.created.Add(ownerSearchAfter[l.tries]) }

// findOwners looks for the owners of what was created, and says when to look again.
func (k *supervisor) findOwners(now time.Time) (again time.Duration, more bool) {
	due := map[uint64]bool{}
	k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l sharedEntry) bool {
		return l.inode == 0 || shmInode(l.name) != l.inode
	})
	for i := range k.unclaimed {
		if l := &k.unclaimed[i]; !l.due().After(now) {
			due[l.inode] = true
			l.tries++
		}
	}
	claimed := false
	if len(due) > 0 && len(k.byPID) > 0 {
		for _, c := range listProcesses() {
			p := k.byPID[c.group]
			if p == nil {
				p = k.byPID[c.session]
			}
			if p == nil || c.zombie {
				continue
			}
			for _, inode := range sharedInUse(c.pid, due) {
				// A semaphore has two names for a moment; both are its own.
				for _, l := range k.unclaimed {
					if l.inode == inode {
						if p.shared == nil {
							p.shared = map[string]uint64{}
						}
						p.shared[l.name], claimed = inode, true
					}
				}
				k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l sharedEntry) bool { return l.inode == inode })
			}
		}
	}
	if claimed {
		k.saveShared()
	}
	free := map[uint64]bool{}
	k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l sharedEntry) bool {
		if l.tries < len(ownerSearchAfter) {
			return false
		}
		// Killed between the creation of something and our look at it.
		// Only what Python makes so: others may keep files there.
		if (strings.HasPrefix(l.name, "psm_") || strings.HasPrefix(l.name, "sem.")) && k.ended.After(l.created.Add(-exitReorder)) {
			free[l.inode] = true
		}
		return true
	})
	if len(free) > 0 {
		k.removeUnused(free)
	}
	for _, l := range k.unclaimed {
		if d := max(l.due().Sub(now), time.Millisecond); !more || d < again {
			again, more = d, true
		}
	}
	return again, more
}

// exitReorder: the end of a process and what it created before are told on two
// ways, in any order.
const exitReorder = 100 * time.Millisecond

// removeUnused removes files of shared memory that nobody at all uses, which were
// made while a process of ours was about to end.
func (k *supervisor) removeUnused(free map[uint64]bool) {
	for _, c := range listProcesses() {
		for _, inode := range sharedInUse(c.pid, free) {
			delete(free, inode)
		}
	}
	for _, name := range shmNames() {
		if inode := shmInode(name); free[inode] {
			removeShm(name)
		}
	}
}

// sharedNote is what the engines of a supervisor use of shared memory, for the
// supervisor after one that was killed: names with their inodes.
const sharedNote = "shared.json"

func (k *supervisor) saveShared() {
	all := map[string]uint64{}
	for _, p := range k.byPID {
		maps.Copy(all, p.shared)
	}
	if b, err := json.Marshal(all); err == nil {
		os.WriteFile(filepath.Join(k.o.Dir, sharedNote), b, 0o600) // torn, it says nothing
	}
}

// removePredecessorShared removes what the engines of a supervisor that was killed left in
// shared memory. They are gone.
func removePredecessorShared(dir string) {
	path := filepath.Join(dir, sharedNote)
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	os.Remove(path)
	var all map[string]uint64
	if json.Unmarshal(b, &all) != nil {
		return
	}
	free := map[uint64]bool{}
	for name, inode := range all {
		if inode != 0 && shmInode(name) == inode {
			free[inode] = true
		}
	}
	if len(free) == 0 {
		return
	}
	for _, c := range listProcesses() {
		for _, inode := range sharedInUse(c.pid, free) {
			delete(free, inode) // not ours any more
		}
	}
	for name, inode := range all {
		if free[inode] && shmInode(name) == inode {
			removeShm(name)
		}
	}
}

// removeLeftovers removes what a process has left. Its group is gone.
func (p *process) removeLeftovers() {
	for name, inode := range p.shared {
		if shmInode(name) == inode {
			removeShm(name)
		}
	}
	if p.scratch != "" {
		os.RemoveAll(p.scratch)
	}
}
