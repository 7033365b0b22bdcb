package supervisor

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Python's resource tracker would unlink shared memory and semaphores, but it is
// killed with its group. So the supervisor records which group uses each new file in
// shared memory and removes the files of groups that are gone.

// ownerSearchAfter are the times after a file's creation at which its owner is
// searched: files are opened before they are mapped, and most semaphores are
// unlinked at once.
var ownerSearchAfter = [...]time.Duration{3 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}

// sharedEntry is a file in shared memory without a known owner.
type sharedEntry struct {
	name    string
	inode   uint64
	created time.Time
	tries   int
}

func (e sharedEntry) checkAt() time.Time { return e.created.Add(ownerSearchAfter[e.tries]) }

// addShared queues the search for the owner of a file created in shared memory.
func (s *supervisor) addShared(name string) {
	if (len(s.byPID) > 0 || time.Since(s.ended) < time.Second) && len(s.unowned) < 1024 {
		s.unowned = append(s.unowned, sharedEntry{name: name, inode: shmInode(name), created: time.Now()})
		s.owners.Reset(ownerSearchAfter[0])
	}
}

// findOwners searches the owners of new files; again is when to search next.
func (s *supervisor) findOwners(now time.Time) (again time.Duration, more bool) {
	checkAt := map[uint64]bool{}
	s.unowned = slices.DeleteFunc(s.unowned, func(l sharedEntry) bool {
		return l.inode == 0 || shmInode(l.name) != l.inode
	})
	for i := range s.unowned {
		if l := &s.unowned[i]; !l.checkAt().After(now) {
			checkAt[l.inode] = true
			l.tries++
		}
	}
	claimed := false
	if len(checkAt) > 0 && len(s.byPID) > 0 {
		for _, c := range listProcesses() {
			p := cmp.Or(s.byPID[c.PGRP], s.byPID[c.Session])
			if p == nil {
				continue
			}
			for _, inode := range sharedInUse(c.PID, checkAt) {
				// A semaphore has two names for a moment.
				for _, l := range s.unowned {
					if l.inode == inode {
						if p.shared == nil {
							p.shared = map[string]uint64{}
						}
						p.shared[l.name], claimed = inode, true
					}
				}
				s.unowned = slices.DeleteFunc(s.unowned, func(l sharedEntry) bool { return l.inode == inode })
			}
		}
	}
	if claimed {
		s.saveShared()
	}
	free := map[uint64]bool{}
	s.unowned = slices.DeleteFunc(s.unowned, func(l sharedEntry) bool {
		if l.tries < len(ownerSearchAfter) {
			return false
		}
		// Its process may have been killed before the search. Only names that
		// Python uses: other programs keep files there.
		if (strings.HasPrefix(l.name, "psm_") || strings.HasPrefix(l.name, "sem.")) && s.ended.After(l.created.Add(-exitReorder)) {
			free[l.inode] = true
		}
		return true
	})
	removeUnused(free)
	for _, l := range s.unowned {
		if d := max(l.checkAt().Sub(now), time.Millisecond); !more || d < again {
			again, more = d, true
		}
	}
	return again, more
}

// exitReorder is how much later than its exit a file of a process may be reported.
const exitReorder = 100 * time.Millisecond

// removeUnused removes those of the files that no process on this machine uses.
func removeUnused(free map[uint64]bool) {
	if len(free) == 0 {
		return
	}
	for _, c := range listProcesses() {
		for _, inode := range sharedInUse(c.PID, free) {
			delete(free, inode)
		}
	}
	for _, name := range shmNames() {
		if inode := shmInode(name); free[inode] {
			removeShm(name)
		}
	}
}

// sharedNote is the file that lists the shared memory in use, by name with inode,
// for the successor of a killed supervisor.
const sharedNote = "shared.json"

func (s *supervisor) saveShared() {
	all := map[string]uint64{}
	for _, p := range s.byPID {
		maps.Copy(all, p.shared)
	}
	if b, err := json.Marshal(all); err == nil {
		os.WriteFile(filepath.Join(s.o.Dir, sharedNote), b, 0o600) // a torn file is ignored
	}
}

// removePredecessorShared removes the shared memory of a killed supervisor's engines,
// which are gone.
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
	removeUnused(free)
}

// removeLeftovers removes the shared memory and scratch folder of an ended group.
func (p *process) removeLeftovers() {
	for name, inode := range p.shared {
		if shmInode(name) == inode {
			removeShm(name)
		}
	}
	os.RemoveAll(p.scratch)
}
