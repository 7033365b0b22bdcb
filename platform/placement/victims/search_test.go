package victims

import (
	"fmt"
	"math"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

type victim struct {
	cost  float64
	gpus  []int
	bytes functions.Bytes // of each GPU
}

type list []victim

func (l list) Team(int) string { return "t" }
func (l list) Frees(i int) (functions.Resources, []int) {
	return functions.Resources{GPUs: len(l[i].gpus), GPUMemory: l[i].bytes}, l[i].gpus
}

// MayEvict lets the team lose three GPUs.
func (l list) MayEvict(i, taken int) bool { return taken+len(l[i].gpus) <= 3 }

// TestBest: the cheapest set on a node with two GPUs of 80 bytes.
func TestBest(t *testing.T) {
	for _, c := range []struct {
		what    string
		victims list
		needs   functions.Resources
		bound   float64
		want    []int
		cost    float64
	}{
		{"the one that is enough", list{{1, []int{0}, 80}, {2, []int{1}, 80}}, functions.Resources{GPUs: 1, GPUMemory: 80}, math.Inf(1), []int{0}, 1},
		{"both for two GPUs", list{{1, []int{0}, 80}, {2, []int{1}, 80}}, functions.Resources{GPUs: 2, GPUMemory: 80}, math.Inf(1), []int{0, 1}, 3},
		{"a large one in place of two", list{{2, []int{0}, 40}, {2, []int{0}, 40}, {3, []int{1}, 80}}, functions.Resources{GPUs: 1, GPUMemory: 80}, math.Inf(1), []int{2}, 3},
		{"two small ones on one GPU", list{{1, []int{0}, 40}, {3, []int{1}, 40}, {1, []int{0}, 40}, {9, []int{1}, 40}}, functions.Resources{GPUs: 1, GPUMemory: 80}, math.Inf(1), []int{0, 2}, 2},
		{"none below the bound", list{{5, []int{0}, 80}, {5, []int{1}, 80}}, functions.Resources{GPUs: 1, GPUMemory: 80}, 5, nil, 0},
		{"none that is enough", list{{1, []int{0}, 80}}, functions.Resources{GPUs: 3, GPUMemory: 80}, math.Inf(1), nil, 0},
		{"none beyond what may be evicted", list{{1, []int{0, 1}, 40}, {1, []int{0, 1}, 40}}, functions.Resources{GPUs: 2, GPUMemory: 80}, math.Inf(1), nil, 0},
	} {
		room := rooms.New(rooms.Host{}, []rooms.GPU{{Index: 0, Memory: 80}, {Index: 1, Memory: 80}}, make([]rooms.Slot, 2))
		for i := range c.victims {
			room.Take(c.victims.Frees(i))
		}
		for _, g := range []int{0, 1} { // what no victim holds, another replica does
			if held := heldOn(c.victims, g); held < 80 {
				room.Take(functions.Resources{GPUs: 1, GPUMemory: 80 - held}, []int{g})
			}
		}
		var all []Victim
		for _, v := range c.victims {
			all = append(all, Victim{Cost: v.cost, GPUs: len(v.gpus)})
		}
		var s Search
		s.Begin(all, c.victims, &room, c.needs)
		got, cost := s.Best(c.bound)
		if fmt.Sprint(got) != fmt.Sprint(c.want) || cost != c.cost || got != nil && s.AtLeast > cost {
			t.Errorf("%s: %v at %v, at least %v; want %v at %v", c.what, got, cost, s.AtLeast, c.want, c.cost)
		}
	}
}

func heldOn(l list, gpu int) (sum functions.Bytes) {
	for _, v := range l {
		for _, g := range v.gpus {
			if g == gpu {
				sum += v.bytes
			}
		}
	}
	return sum
}
