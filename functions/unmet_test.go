package functions

import "testing"

// TestUnmet: a node that could hold a replica were it empty is enough, whatever holds it now.
func TestUnmet(t *testing.T) {
	const gib = 1 << 30
	node := func(memory Bytes, gpus ...Bytes) Node {
		n := Node{Memory: Capacity{Total: memory, Used: memory}}
		for _, m := range gpus {
			n.GPUs = append(n.GPUs, GPU{MemoryTotal: m, Foreign: m, Health: "it fell off the bus"})
		}
		return n
	}
	all := func(n ...Node) []Node { return n }
	for _, x := range []struct {
		nodes []Node
		needs Resources
		want  string
	}{
		{nil, Resources{GPUs: 1}, ""},
		{all(node(gib)), Resources{}, ""},
		{all(node(gib)), Resources{GPUs: 1}, "it needs 1 GPU, and no node has one"},
		{all(node(gib)), Resources{GPUs: 2, GPUMemory: gib}, "it needs 2 GPUs, and no node has one"},
		{all(node(gib), node(gib, gib)), Resources{GPUs: 1, GPUMemory: gib}, ""},
		{all(node(gib, 0)), Resources{GPUs: 1, GPUMemory: 9 * gib}, ""},
		{all(node(gib, gib, 2*gib)), Resources{GPUs: 1, GPUMemory: 3 * gib}, "it needs a GPU with 3 GiB, and the largest GPU has 2 GiB"},
		{all(node(gib, gib), node(gib, gib)), Resources{GPUs: 2}, "it needs 2 GPUs on one node, and the largest has 1"},
		{all(node(gib, gib, 4*gib)), Resources{GPUs: 2, GPUMemory: 2 * gib}, "it needs 2 GPUs with 2 GiB each on one node, and the largest has 1"},
		{all(node(2*gib), node(gib, gib)), Resources{GPUs: 1, Memory: 2 * gib}, "it needs 2 GiB of host memory on one node, and the largest that it fits otherwise has 1 GiB"},
		{all(node(gib), node(3*gib)), Resources{Memory: 2 * gib}, ""},
		{all(node(0)), Resources{Memory: 99 * gib}, ""},
	} {
		if got := x.needs.Unmet(x.nodes); got != x.want {
			t.Errorf("%+v of %+v: %q, want %q", x.needs, x.nodes, got, x.want)
		}
	}
}
