package keeper

import (
	"os"
	"slices"
	"time"
)

// What an engine leaves outside of its processes. Python's own resource tracker
// would unlink shared memory and semaphores, but it dies with its group; so the
// keeper notes who uses what is created in shared memory, and removes what a
// group that is gone has left. The folder of a process goes with it.

// claimAfter the creation of something in shared memory, its owner is looked
// for: not at once, for it is opened before it is mapped, and most semaphores
// are unlinked again.
var claimAfter = [...]time.Duration{3 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}

// leaving is something in shared memory whose owner is not known yet.
type leaving struct {
	name  string
	inode uint64
	born  time.Time
	tries int
}

func (l leaving) due() time.Time { return l.born.Add(claimAfter[l.tries]) }

// claim looks for the owners of what was created, and says when to look again.
func (k *keep) claim(now time.Time) (again time.Duration, more bool) {
	due := map[uint64]bool{}
	k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l leaving) bool {
		return l.inode == 0 || shmInode(l.name) != l.inode
	})
	for i := range k.unclaimed {
		if l := &k.unclaimed[i]; !l.due().After(now) {
			due[l.inode] = true
			l.tries++
		}
	}
	if len(due) > 0 && len(k.byPID) > 0 {
		for _, c := range kindred() {
			p := k.byPID[c.group]
			if p == nil {
				p = k.byPID[c.session]
			}
			if p == nil || c.zombie {
				continue
			}
			for _, inode := range uses(c.pid, due) {
				// A semaphore has two names for a moment; both are its own.
				for _, l := range k.unclaimed {
					if l.inode == inode {
						if p.shared == nil {
							p.shared = map[string]uint64{}
						}
						p.shared[l.name] = inode
					}
				}
				k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l leaving) bool { return l.inode == inode })
			}
		}
	}
	free := map[uint64]bool{}
	k.unclaimed = slices.DeleteFunc(k.unclaimed, func(l leaving) bool {
		if l.tries < len(claimAfter) {
			return false
		}
		// Killed between the creation of something and our look at it.
		if k.ended.After(l.born.Add(-endedLate)) {
			free[l.inode] = true
		}
		return true
	})
	if len(free) > 0 {
		k.orphaned(free)
	}
	for _, l := range k.unclaimed {
		if d := max(l.due().Sub(now), time.Millisecond); !more || d < again {
			again, more = d, true
		}
	}
	return again, more
}

// endedLate: the end of a process and what it created before are told on two
// ways, in any order.
const endedLate = 100 * time.Millisecond

// orphaned removes files of shared memory that nobody at all uses, which were
// made while a process of ours was about to end.
func (k *keep) orphaned(free map[uint64]bool) {
	for _, c := range kindred() {
		for _, inode := range uses(c.pid, free) {
			delete(free, inode)
		}
	}
	for _, name := range shmNames() {
		if inode := shmInode(name); free[inode] {
			removeShm(name)
		}
	}
}

// clear removes what a process has left. Its group is gone.
func (p *proc) clear() {
	for name, inode := range p.shared {
		if shmInode(name) == inode {
			removeShm(name)
		}
	}
	if p.scratch != "" {
		os.RemoveAll(p.scratch)
	}
}
