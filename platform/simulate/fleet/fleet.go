package fleet

import (
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// Fleet is the machines of a simulation, and the engines that run there.
type Fleet struct {
	Nodes  []Node `json:"nodes"`
	Engine Engine `json:"engine"`
}

// Node is Count hosts of one kind. Rates are bytes a second.
type Node struct {
	Name      string          `json:"name"` // hosts are NAME-1 to NAME-Count
	Count     int             `json:"count"`
	GPUs      int             `json:"gpus"`
	GPUMemory functions.Bytes `json:"gpuMemory"` // of each
	Group     int             `json:"group"`     // GPUs that reach each other fastest; 0: all of a host
	Memory    functions.Bytes `json:"memory"`    // host memory that replicas and sleepers may take
	Store     functions.Bytes `json:"store"`     // NVMe that checkpoints may take
	Link      functions.Bytes `json:"link"`      // from where checkpoints come from, shared by who stages
	Disk      functions.Bytes `json:"disk"`      // from NVMe to a GPU, shared by who loads
	Copy      functions.Bytes `json:"copy"`      // from host memory to a GPU
}

// Engine is how long an engine takes: medians, about which Spread scatters.
type Engine struct {
	Spawn   functions.Duration `json:"spawn"`   // from nothing to a process that wants weights
	Warmup  functions.Duration `json:"warmup"`  // from weights to a first token
	Rise    functions.Duration `json:"rise"`    // of a sleeper, beside the copy of its weights
	Plan    functions.Duration `json:"plan"`    // to list what a source has; 0: 200 ms
	Exec    functions.Duration `json:"exec"`    // from the order to the process, with the bytes at hand; 0: 20 ms
	Exit    functions.Duration `json:"exit"`    // from the end's order to the end of the process; 0: 300 ms
	Spread  int                `json:"spread"`  // percent: the scatter of these times, a lognormal's sigma
	Prefill int                `json:"prefill"` // tokens a second of one request's prompt
	Decode  int                `json:"decode"`  // tokens a second of one request's answer
}

// Default is what a node is that says only its GPUs: an H100 host.
func (n *Node) Default() {
	*n = Node{
		Count: 1, GPUMemory: 80 << 30, Memory: 1 << 40, Store: 4 << 40,
		Link: 2 << 30, Disk: 5 << 30, Copy: 20 << 30,
	}
}

// DefaultEngine is a vLLM with its compile cache at hand.
var DefaultEngine = Engine{
	Spawn: functions.Duration(6 * time.Second), Warmup: functions.Duration(2 * time.Second), Rise: functions.Duration(time.Second),
	Plan: functions.Duration(200 * time.Millisecond), Exec: functions.Duration(20 * time.Millisecond), Exit: functions.Duration(300 * time.Millisecond),
	Spread: 15, Prefill: 8000, Decode: 60,
}

// Example is a fleet file with every key explained.
//
//go:embed example.yaml
var Example []byte

// Bounds of a fleet.
const (
	maxHosts = 100_000
	maxGPUs  = 64 // of a host
)

// Read reads a fleet file.
func Read(file string) (*Fleet, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Decode(file, b)
}

// Decode reads the text of a fleet file; file is for messages. The error is
// catalog.Problems: everything that is wrong, with its line.
func Decode(file string, data []byte) (*Fleet, error) {
	f := &Fleet{Engine: DefaultEngine}
	places, err := catalog.DecodePlaced(file, data, f)
	if err != nil {
		return nil, err
	}
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Name == "" && len(f.Nodes) > 1 {
			n.Name = "node" + strconv.Itoa(i+1)
		} else if n.Name == "" {
			n.Name = "node"
		}
	}
	if p := f.problems(file, places); len(p) > 0 {
		return nil, p
	}
	return f, nil
}

// problems says what is wrong with what was read.
func (f *Fleet) problems(file string, places catalog.Places) (out catalog.Problems) {
	fail := func(path, hint, format string, args ...any) {
		line, column := places(path)
		out = append(out, catalog.Problem{File: file, Line: line, Column: column, Path: path, Hint: hint, Message: fmt.Sprintf(format, args...)})
	}
	if len(f.Nodes) == 0 {
		fail("nodes", "thaw simulate --example-fleet prints one", "a fleet needs nodes")
		return out
	}
	hosts, gpus := 0, 0
	names := map[string]bool{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		at := "nodes[" + strconv.Itoa(i) + "]"
		if !functions.IsLabel(n.Name) {
			fail(at+".name", "lower-case letters, digits and '-'", "%q is no name of a node", n.Name)
		} else if names[n.Name] {
			fail(at+".name", "", "two kinds of nodes are called %q", n.Name)
		}
		names[n.Name] = true
		if n.Count < 1 {
			fail(at+".count", "", "at least one host is wanted")
		}
		if n.GPUs < 0 || n.GPUs > maxGPUs {
			fail(at+".gpus", "", "0 to %d GPUs a host", maxGPUs)
		}
		if n.GPUs > 0 && n.GPUMemory <= 0 {
			fail(at+".gpuMemory", "such as 80Gi", "GPUs need memory")
		}
		if n.Group < 0 || n.Group > maxGPUs {
			fail(at+".group", "", "0 to %d", maxGPUs)
		}
		for _, r := range []struct {
			key  string
			rate functions.Bytes
		}{{"link", n.Link}, {"disk", n.Disk}, {"copy", n.Copy}} {
			if r.rate <= 0 {
				fail(at+"."+r.key, "bytes a second, such as 2Gi", "a rate is needed")
			}
		}
		if n.Count > 0 && n.GPUs > 0 {
			gpus += min(n.Count, maxHosts) * n.GPUs
		}
		hosts += min(max(n.Count, 0), maxHosts+1)
	}
	if hosts > maxHosts {
		fail("nodes", "", "more than %d hosts", maxHosts)
	}
	if gpus == 0 {
		fail("nodes", "gpus: 8, for instance", "no node has a GPU")
	}
	e := f.Engine
	if e.Spread < 0 || e.Spread > 200 {
		fail("engine.spread", "", "0 to 200 percent")
	}
	if e.Prefill < 1 {
		fail("engine.prefill", "tokens a second, such as 8000", "a rate is needed")
	}
	if e.Decode < 1 {
		fail("engine.decode", "tokens a second, such as 60", "a rate is needed")
	}
	return out
}

// Hosts calls yield with every host: its name and its kind.
func (f *Fleet) Hosts(yield func(id string, n *Node) bool) {
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for k := range n.Count {
			if !yield(n.Name+"-"+strconv.Itoa(k+1), n) {
				return
			}
		}
	}
}

// GPUs is how many there are.
func (f *Fleet) GPUs() (n int) {
	for i := range f.Nodes {
		n += f.Nodes[i].Count * f.Nodes[i].GPUs
	}
	return n
}

// GPUMemory is that of all GPUs together.
func (f *Fleet) GPUMemory() (b functions.Bytes) {
	for i := range f.Nodes {
		b += functions.Bytes(f.Nodes[i].Count*f.Nodes[i].GPUs) * f.Nodes[i].GPUMemory
	}
	return b
}

// WithGPUs is the fleet in another size: its hosts with GPUs in their order,
// again and again, until n GPUs stand there. The last host has what is left of
// its GPUs, and of everything else the same share.
func (f *Fleet) WithGPUs(n int) *Fleet {
	out := &Fleet{Engine: f.Engine}
	all := f.GPUs()
	if n < 1 || all == 0 {
		return out
	}
	whole, left := n/all, n%all
	for _, k := range f.Nodes {
		if k.GPUs == 0 {
			continue
		}
		extra := min(left/k.GPUs, k.Count) // hosts of the last, incomplete round
		left -= extra * k.GPUs
		part := 0
		if extra < k.Count {
			part, left = left, 0
		}
		host := k
		if k.Count = k.Count*whole + extra; k.Count > 0 {
			out.Nodes = append(out.Nodes, k)
		}
		if part == 0 {
			continue
		}
		share := func(b functions.Bytes) functions.Bytes {
			return max(1, functions.Bytes(float64(b)*float64(part)/float64(host.GPUs)))
		}
		out.Nodes = append(out.Nodes, Node{
			Name: host.Name + "-part", Count: 1, GPUs: part, GPUMemory: host.GPUMemory, Group: host.Group,
			Memory: share(host.Memory), Store: share(host.Store), Link: share(host.Link), Disk: share(host.Disk), Copy: host.Copy,
		})
	}
	return out
}
