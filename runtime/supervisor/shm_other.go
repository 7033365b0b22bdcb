//go:build !linux

package supervisor

// Shared memory is not a folder on these systems: what an engine leaves stays.
func watchShm(<-chan struct{}) <-chan string { return nil }

func shmInode(string) uint64 { return 0 }

func shmNames() []string { return nil }

func removeShm(string) {}

func sharedInUse(int, map[uint64]bool) []uint64 { return nil }
