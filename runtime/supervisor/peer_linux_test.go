package supervisor

import (
	"os"
	"testing"
)

// TestDescends: of a process whose ancestors are not all there it is not known that it is
// no engine.
func TestDescends(t *testing.T) {
	parents := map[int]int{1: 0, 5: 1, 6: 5, 7: 6, 10: 1, 11: 10, 12: 11, 20: 19, 30: 0}
	for _, x := range []struct {
		name       string
		pid        int
		own, known bool
	}{
		{"child", 11, true, true}, {"grandchild", 12, true, true},
		{"other", 7, false, true}, {"init", 1, false, true}, {"entered from outside", 30, false, true}, {"itself", 10, false, true},
		{"gone", 99, false, false}, {"its parent is gone", 20, false, false}, {"in another namespace", 0, false, false},
	} {
		own, known := descends(x.pid, 10, func(pid int) (int, bool) { p, ok := parents[pid]; return p, ok })
		if own != x.own || known != x.known {
			t.Errorf("%s: own %v known %v, want %v %v", x.name, own, known, x.own, x.known)
		}
	}
	if own, known := descends(os.Getpid(), os.Getppid(), parentOf); !own || !known {
		t.Error("a child of its parent is not known")
	}
}
