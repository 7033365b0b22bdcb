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

type Fleet struct {
	Nodes  []HostKind `json:"nodes"`
	Engine Engine     `json:"engine"`
}

// HostKind is Count hosts of one kind. Rates are bytes per second.
type HostKind struct {
	Name      string          `json:"name"` // hosts are NAME-1 to NAME-Count
	Count     int             `json:"count"`
	GPUs      int             `json:"gpus"`
	GPUMemory functions.Bytes `json:"gpuMemory"` // of each
	Group     int             `json:"group"`     // GPUs in one interconnect group; 0: all of a host
	Memory    functions.Bytes `json:"memory"`    // host memory for replicas, sleeping ones included
	Store     functions.Bytes `json:"store"`     // NVMe space for checkpoints
	Link      functions.Bytes `json:"link"`      // from the sources, shared by staging replicas
	Disk      functions.Bytes `json:"disk"`      // from NVMe to GPUs, shared by loading replicas
	Copy      functions.Bytes `json:"copy"`      // from host memory to GPUs
}

// Engine is the median times of an engine, with their scatter.
type Engine struct {
	Spawn   functions.Duration `json:"spawn"`   // from the process to an engine ready for weights
	Warmup  functions.Duration `json:"warmup"`  // from loaded weights to the first token
	Rise    functions.Duration `json:"rise"`    // wake-up of a sleeping replica, without the copy of its weights
	Plan    functions.Duration `json:"plan"`    // listing a source; 0: 200 ms
	Exec    functions.Duration `json:"exec"`    // from the load command to the process, with the bytes on the node; 0: 20 ms
	Exit    functions.Duration `json:"exit"`    // from the stop command to the end of the process; 0: 300 ms
	Spread  int                `json:"spread"`  // scatter in percent: the sigma of a lognormal
	Prefill int                `json:"prefill"` // tokens per second of one prompt
	Decode  int                `json:"decode"`  // tokens per second of one answer
}

// Default fills the unset fields with those of an H100 host.
func (k *HostKind) Default() {
	*k = HostKind{
		Count: 1, GPUMemory: 80 << 30, Memory: 1 << 40, Store: 4 << 40,
		Link: 2 << 30, Disk: 5 << 30, Copy: 20 << 30,
	}
}

// DefaultEngine is vLLM with a warm compile cache.
var DefaultEngine = Engine{
	Spawn: functions.Duration(6 * time.Second), Warmup: functions.Duration(2 * time.Second), Rise: functions.Duration(time.Second),
	Plan: functions.Duration(200 * time.Millisecond), Exec: functions.Duration(20 * time.Millisecond),
	Exit:   functions.Duration(300 * time.Millisecond),
	Spread: 15, Prefill: 8000, Decode: 60,
}

// Example is a fleet file with every key explained.
//
//go:embed example.yaml
var Example []byte

const (
	maxHosts = 100_000
	maxGPUs  = 64 // of a host
)

func Read(file string) (*Fleet, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Decode(file, b)
}

// Decode parses a fleet file; file is for messages. The error is catalog.Problems: every
// mistake with its line.
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

func (f *Fleet) problems(file string, places catalog.Places) (out catalog.Problems) {
	fail := func(is bool, path, hint, format string, args ...any) {
		if is {
			line, column := places(path)
			out = append(out, catalog.Problem{File: file, Line: line, Column: column, Path: path, Hint: hint, Message: fmt.Sprintf(format, args...)})
		}
	}
	if len(f.Nodes) == 0 {
		fail(true, "nodes", "thaw simulate --example-fleet prints one", "a fleet needs nodes")
		return out
	}
	hosts, gpus := 0, 0
	names := map[string]bool{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		at := "nodes[" + strconv.Itoa(i) + "]"
		label := functions.IsLabel(n.Name)
		fail(!label, at+".name", "lower-case letters, digits and '-'", "%q is no name of a node", n.Name)
		fail(label && names[n.Name], at+".name", "", "two kinds of nodes are called %q", n.Name)
		names[n.Name] = true
		fail(n.Count < 1, at+".count", "", "at least one host is wanted")
		fail(n.GPUs < 0 || n.GPUs > maxGPUs, at+".gpus", "", "0 to %d GPUs a host", maxGPUs)
		fail(n.GPUs > 0 && n.GPUMemory <= 0, at+".gpuMemory", "such as 80Gi", "GPUs need memory")
		fail(n.Group < 0 || n.Group > maxGPUs, at+".group", "", "0 to %d", maxGPUs)
		fail(n.Link <= 0, at+".link", "bytes a second, such as 2Gi", "a rate is needed")
		fail(n.Disk <= 0, at+".disk", "bytes a second, such as 2Gi", "a rate is needed")
		fail(n.Copy <= 0, at+".copy", "bytes a second, such as 2Gi", "a rate is needed")
		if n.Count > 0 && n.GPUs > 0 {
			gpus += min(n.Count, maxHosts) * n.GPUs
		}
		hosts += min(max(n.Count, 0), maxHosts+1)
	}
	fail(hosts > maxHosts, "nodes", "", "more than %d hosts", maxHosts)
	fail(gpus == 0, "nodes", "gpus: 8, for instance", "no node has a GPU")
	e := f.Engine
	fail(e.Spread < 0 || e.Spread > 200, "engine.spread", "", "0 to 200 percent")
	fail(e.Prefill < 1, "engine.prefill", "tokens a second, such as 8000", "a rate is needed")
	fail(e.Decode < 1, "engine.decode", "tokens a second, such as 60", "a rate is needed")
	return out
}

func (f *Fleet) Hosts(yield func(id string, n *HostKind) bool) {
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for k := range n.Count {
			if !yield(n.Name+"-"+strconv.Itoa(k+1), n) {
				return
			}
		}
	}
}

func (f *Fleet) GPUs() (n int) {
	for i := range f.Nodes {
		n += f.Nodes[i].Count * f.Nodes[i].GPUs
	}
	return n
}

func (f *Fleet) GPUMemory() (b functions.Bytes) {
	for i := range f.Nodes {
		b += functions.Bytes(f.Nodes[i].Count*f.Nodes[i].GPUs) * f.Nodes[i].GPUMemory
	}
	return b
}

// WithGPUs returns the fleet resized to n GPUs: its hosts with GPUs repeat in order. The
// last host gets the remaining GPUs and the same fraction of everything else.
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
		extra := min(left/k.GPUs, k.Count) // hosts in the last, incomplete round
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
		out.Nodes = append(out.Nodes, HostKind{
			Name: host.Name + "-part", Count: 1, GPUs: part, GPUMemory: host.GPUMemory, Group: host.Group,
			Memory: share(host.Memory), Store: share(host.Store), Link: share(host.Link), Disk: share(host.Disk), Copy: host.Copy,
		})
	}
	return out
}
