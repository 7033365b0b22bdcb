package rooms

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestChoose: whole GPUs and whole groups stay free. The node has two groups of two GPUs
// with 80 bytes each.
func TestChoose(t *testing.T) {
	type use struct {
		gpus  []int
		bytes functions.Bytes
	}
	for _, c := range []struct {
		what  string
		used  []use
		sick  int // a GPU that is unhealthy; -1: none
		needs functions.Resources
		want  []int // nil: it does not fit
	}{
		{"an empty node", nil, -1, functions.Resources{GPUs: 1, GPUMemory: 40}, []int{0}},
		{"the GPU that is shared already", []use{{[]int{3}, 40}}, -1, functions.Resources{GPUs: 1, GPUMemory: 40}, []int{3}},
		{"not one that is reserved whole", []use{{[]int{0}, 0}}, -1, functions.Resources{GPUs: 1, GPUMemory: 10}, []int{1}},
		{"a whole GPU beside a shared one", []use{{[]int{2}, 10}}, -1, functions.Resources{GPUs: 1}, []int{3}},
		{"two of one group", []use{{[]int{0}, 80}}, -1, functions.Resources{GPUs: 2, GPUMemory: 80}, []int{2, 3}},
		{"of both groups where none has enough", []use{{[]int{0}, 80}, {[]int{2}, 80}}, -1, functions.Resources{GPUs: 2, GPUMemory: 80}, []int{1, 3}},
		{"not the unhealthy one", nil, 0, functions.Resources{GPUs: 1, GPUMemory: 80}, []int{1}},
		{"none is large enough", nil, -1, functions.Resources{GPUs: 1, GPUMemory: 81}, nil},
		{"the host is too small", nil, -1, functions.Resources{GPUs: 1, GPUMemory: 40, Memory: 11}, nil},
	} {
		gpus := []GPU{{Index: 0, Memory: 80, Group: 1}, {Index: 1, Memory: 80, Group: 1}, {Index: 2, Memory: 80, Group: 2}, {Index: 3, Memory: 80, Group: 2}}
		if c.sick >= 0 {
			gpus[c.sick].Unhealthy = true
		}
		room := New(Host{Memory: 10, CPU: 10, Pods: 10}, gpus, make([]Slot, len(gpus)))
		before := room.Clone()
		for _, u := range c.used {
			room.Take(functions.Resources{GPUs: len(u.gpus), GPUMemory: u.bytes, Memory: 1}, u.gpus)
		}
		got, ok := room.Choose(c.needs)
		if ok != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.what, got, ok, c.want)
		}
		if ok != room.Fits(c.needs) || ok && !room.FitsOn(c.needs, got) {
			t.Errorf("%s: Choose, Fits and FitsOn disagree", c.what)
		}
		for _, u := range c.used {
			room.Give(functions.Resources{GPUs: len(u.gpus), GPUMemory: u.bytes, Memory: 1}, u.gpus)
		}
		if room.Host != before.Host || !slices.Equal(room.slots, before.slots) {
			t.Errorf("%s: what was taken and given back is missing", c.what)
		}
	}
}

// TestMayFitWith: what fits once all of a list has left is never excluded, also where some of it
// has left the room already.
func TestMayFitWith(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	excluded := 0
	for range 20_000 {
		gpus := []GPU{{Index: 0, Memory: 80}, {Index: 1, Memory: 80, Whole: rnd.IntN(3) == 0}, {Index: 2, Memory: 40, Unhealthy: rnd.IntN(4) == 0}}
		room := New(Host{Memory: 10, CPU: 10, Pods: 3}, gpus, make([]Slot, len(gpus)))
		any := func() functions.Resources {
			return functions.Resources{GPUs: 1 + rnd.IntN(2), GPUMemory: functions.Bytes(rnd.IntN(4) * 30),
				Memory: functions.Bytes(rnd.IntN(8)), Pods: rnd.IntN(3)}
		}
		var sum Room
		sum.Clear(gpus)
		leaves := room.Clone()
		for range rnd.IntN(5) {
			res, on := any(), []int{rnd.IntN(3)}
			room.Take(res, on)
			leaves.Take(res, on)
			if rnd.IntN(3) == 0 {
				continue // it stays
			}
			leaves.Give(res, on)
			sum.Give(res, on)
			if rnd.IntN(3) == 0 {
				room.Give(res, on) // it has left already
			}
		}
		needs := any()
		may := room.MayFitWith(&sum, needs)
		if leaves.Fits(needs) && !may {
			t.Fatalf("%+v is excluded from %+v with %+v", needs, room, sum)
		}
		if !may {
			excluded++
		}
	}
	if excluded == 0 {
		t.Error("nothing is ever excluded")
	}
}
