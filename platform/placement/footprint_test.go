package placement

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// TestFootprint: a model reserves what it was measured to hold, if that is clearly more
// than it asks for, until its engine is started in another way.
func TestFootprint(t *testing.T) {
	n := &Node{GPUs: []rooms.GPU{{Memory: 80 * gib}, {Memory: 40 * gib}, {}}}
	for _, c := range []struct {
		what        string
		asked, held functions.Bytes
		want        functions.Bytes
	}{
		{"less", 20 * gib, 5 * gib, 20 * gib},
		{"a little more", 20 * gib, 21 * gib, 20 * gib},
		{"clearly more", 20 * gib, 30 * gib, 30 * gib},
		{"more than its node's smallest GPU", 20 * gib, 60 * gib, 40 * gib},
		{"nothing measured", 20 * gib, 0, 20 * gib},
		{"whole GPUs", 0, 30 * gib, 0},
	} {
		f := &Function{}
		f.SetResources(functions.Resources{GPUs: 1, GPUMemory: c.asked}, false)
		if more := f.RecordGPUMemory(c.held, n); more != (c.want > c.asked) || f.Resources.GPUMemory != c.want {
			t.Errorf("%s: %v, it reserves %v, want %v", c.what, more, f.Resources.GPUMemory, c.want)
		}
		if f.RecordGPUMemory(c.held, n) {
			t.Errorf("%s: reported again", c.what)
		}
		f.SetResources(functions.Resources{GPUs: 1, GPUMemory: c.asked}, true)
		if f.Resources.GPUMemory != c.want {
			t.Errorf("%s: forgotten, it reserves %v", c.what, f.Resources.GPUMemory)
		}
		f.SetResources(functions.Resources{GPUs: 1, GPUMemory: c.asked}, false)
		if f.Resources.GPUMemory != c.asked {
			t.Errorf("%s: kept for another engine: %v", c.what, f.Resources.GPUMemory)
		}
	}
}
