package fleet

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

func TestExample(t *testing.T) {
	f, err := Decode("example.yaml", Example)
	if err != nil {
		t.Fatal(err)
	}
	if f.GPUs() != 32 || f.Engine != DefaultEngine || f.GPUMemory() != 32*80<<30 {
		t.Errorf("%+v", f)
	}
	var hosts []string
	for id, n := range f.Hosts {
		hosts = append(hosts, id)
		if n.Copy != 20<<30 {
			t.Errorf("%s: %+v", id, n)
		}
	}
	if strings.Join(hosts, " ") != "h100-1 h100-2 h100-3 h100-4" {
		t.Error(hosts)
	}
	// The defaults equal the values that the example shows.
	short, err := Decode("short.yaml", []byte("nodes: [{name: h100, count: 4, gpus: 8, group: 8}]"))
	if err != nil || len(short.Nodes) != 1 || short.Nodes[0] != f.Nodes[0] || short.Engine != f.Engine {
		t.Errorf("%+v %v", short, err)
	}
}

func TestBadFleets(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "a fleet needs nodes"},
		{"nodes: []", "fleet.yaml:1:1: nodes: a fleet needs nodes"},
		{"nodes:\n- {count: 3}", "fleet.yaml:1:1: nodes: no node has a GPU"},
		{"nodes:\n- gpus: 8\n  gpuMemry: 80Gi", "fleet.yaml:3:3: nodes[0].gpuMemry: unknown key (did you mean gpuMemory?)"},
		{"nodes:\n- gpus: 8\n  gpuMemory: 0", "fleet.yaml:3:3: nodes[0].gpuMemory: GPUs need memory"},
		{"nodes:\n- gpus: 8\n  count: 0", "nodes[0].count: at least one host"},
		{"nodes:\n- gpus: 8\n  link: fast", "fleet.yaml:3:9: nodes[0].link: \"fast\" is no size"},
		{"nodes:\n- gpus: 8\n  disk: 0", "fleet.yaml:3:3: nodes[0].disk: a rate is needed"},
		{"nodes:\n- gpus: -1", "nodes[0].gpus: 0 to 64"},
		{"nodes:\n- gpus: 8\n  count: 10000000", "more than 100000 hosts"},
		{"nodes:\n- gpus: 8\n  name: Big One", "nodes[0].name: \"Big One\" is no name"},
		{"nodes:\n- {gpus: 8, name: a}\n- {gpus: 8, name: a}", "fleet.yaml:3:13: nodes[1].name: two kinds"},
		{"nodes: [{gpus: 1}]\nengine:\n  decode: 0", "fleet.yaml:3:3: engine.decode: a rate is needed"},
		{"nodes: [{gpus: 1}]\nengine: {spread: 900}", "engine.spread: 0 to 200"},
		{"nodes: [{gpus: 1}]\nengine: {spawn: soon}", "engine.spawn: \"soon\" is no duration"},
	} {
		if _, err := Decode("fleet.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := Read("no-such-file.yaml"); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestWithGPUs(t *testing.T) {
	f, err := Decode("f",
		[]byte("nodes:\n- {name: big, count: 2, gpus: 8}\n- {name: cpu, count: 3, gpus: 0}\n- {name: small, count: 4, gpus: 1, gpuMemory: 24Gi}"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 130; n++ {
		g := f.WithGPUs(n)
		if g.GPUs() != n {
			t.Fatalf("%d GPUs wanted, %d there: %+v", n, g.GPUs(), g.Nodes)
		}
		seen := map[string]bool{}
		for id := range g.Hosts {
			if seen[id] {
				t.Fatalf("%d: two hosts are %s", n, id)
			}
			seen[id] = true
		}
	}
	g := f.WithGPUs(12)
	if len(g.Nodes) != 2 || g.Nodes[1].GPUs != 4 || g.Nodes[1].Memory != functions.Bytes(512<<30) || g.Nodes[1].Link != 1<<30 {
		t.Errorf("%+v", g.Nodes)
	}
	if f.WithGPUs(20).GPUMemory() != f.GPUMemory() {
		t.Error("the same number of GPUs is another fleet")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Example)
	f.Add([]byte("nodes:\n- {gpus: 8, count: 3}"))
	f.Add([]byte("nodes:\n- &a {gpus: 1}\n- *a"))
	f.Add([]byte("engine: {spread: -1}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Decode("f", b)
		if err != nil {
			return
		}
		if got.GPUs() < 1 || got.WithGPUs(7).GPUs() != 7 {
			t.Errorf("%q: %+v", b, got)
		}
	})
}
