package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/mount"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/gpu"
)

// Config of a whole node.
type Config struct {
	Name        string // of the node; "" is the host's name
	Machine     string // identity of the host, see nodestore.Machine; "" is that
	Version     string
	Data        string // folder: store and agent live below it
	Exe         string // the thaw program
	KeeperArgs  []string
	Orphan      time.Duration
	GPUs        int             // negative: all there are
	GPUMemory   functions.Bytes // of each; 0: all of it
	Memory      functions.Bytes // for replicas together; 0: 80 % of the machine's
	Sleep       functions.Bytes // of that, what they may hold asleep; 0: all of it
	Store       functions.Bytes // of checkpoints; 0: all the disk has but 256 MiB
	KeepEngines bool
	Warm        WarmMode
	Confine     ConfineMode // of engines; "" is off
	// RefuseVulnerable: see Options.
	RefuseVulnerable bool
	Environ          func() []string
	Push             func(functions.Heartbeat)
	InFlight         func(name functions.Name, replica string) int
	AbortRequests    func(url string) // ends our requests to an engine
	Traffic          func(url string) functions.Traffic
	Log              *slog.Logger

	// EngineCaches is what happens to compile caches; "" is CachesLocal.
	EngineCaches CacheMode

	// Peering shares the downloading of bytes with other nodes; nil: they are
	// not.
	Peering *nodestore.Peering
}

// Node is an agent with its loader, store, GPU facts and inventory.
type Node struct {
	*Agent
	store     *nodestore.Store
	stager    *Stager
	inventory *InventoryPoller
	facts     *gpu.Facts
	manual    *engine.Manual
}

// Open makes a node and polls the machine once. It makes its folders and starts nothing.
func Open(c Config) (*Node, error) {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Memory == 0 {
		m, err := nodestore.Memory()
		if err != nil {
			return nil, fmt.Errorf("memory: %w", err)
		}
		c.Memory = m
	}
	if c.Name == "" {
		c.Name = hostLabel()
	}
	if c.Machine == "" {
		c.Machine = nodestore.Machine()
	}
	sh, err := nodestore.Open(nodestore.Options{Node: c.Name, Data: c.Data, Budget: c.Store, Peering: c.Peering, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	facts, err := gpu.Open()
	if err != nil {
		c.Log.Warn("the GPU driver does not answer", "error", err)
	} else if reason := facts.Why(); reason != "" {
		c.Log.Info("no GPUs", "why", reason)
	}
	n := &Node{facts: facts, store: sh}
	n.manual = engine.NewManual(filepath.Join(c.Data, "agent", "flags"), engine.ManualOptions{
		Environ: c.Environ, Quiet: func() bool { return n.Agent.Idle() }, Log: c.Log,
	})
	n.inventory = NewInventoryPoller(facts, sh, c.GPUs, c.GPUMemory)
	var peerURL string
	if c.Peering != nil {
		peerURL = c.Peering.URL
	}
	arriving := filepath.Join(c.Data, "agent", "arriving")
	if err := mount.Sweep(arriving); err != nil {
		c.Log.Warn("mounts of an earlier agent cannot be removed", "error", err)
	}
	n.stager = NewStager(sh.Loader(), StagerOptions{
		Arriving: arriving, Early: earlyStartBytes, Caches: compileCaches(c), Trust: c.EngineCaches == CachesTrust,
		Confined: c.Confine == ConfineAuto && confine.Unavailable() == "", Sources: sh.Sources(), Log: c.Log,
	})
	n.Agent = New(Options{
		ID: c.Name, Version: c.Version, Machine: c.Machine, Dir: filepath.Join(c.Data, "agent"), Exe: c.Exe, KeeperArgs: c.KeeperArgs,
		Orphan: c.Orphan, Memory: c.Memory, Sleep: c.Sleep, Stager: n.stager, Inventory: n.inventory,
		RetainCheckpoint: retainCheckpoint(sh.Checkpoints(), n.stager, c.Log), FilesLost: n.stager.ViewLost, PeerURL: peerURL,
		SharedFolders: c.Peering != nil, Environ: c.Environ, KeepEngines: c.KeepEngines, Warm: c.Warm, Confine: c.Confine,
		RefuseVulnerable: c.RefuseVulnerable,
		Push:             c.Push, InFlight: c.InFlight, AbortRequests: c.AbortRequests, Traffic: c.Traffic, FreeGPU: n.freeMemory,
		GPUHolders: n.facts.Holders, GPUMemoryOf: n.facts.HeldBy, Manual: n.manual, Log: c.Log,
	})
	return n, nil
}

func compileCaches(c Config) *enginecache.Caches {
	if c.EngineCaches == CachesOff {
		return nil
	}
	return enginecache.New(enginecache.Options{Dir: filepath.Join(c.Data, "engine-caches"), Log: c.Log})
}

// earlyStartBytes is how many missing bytes make an engine start before they have arrived:
// fewer arrive while its process starts.
const earlyStartBytes = 8 << 20

// retainCheckpoint leases the checkpoint of a path in the store, so that it is not evicted
// under an engine. Folders used in place are not in the store and are never evicted.
func retainCheckpoint(st *store.Store, stager *Stager, log *slog.Logger) func(path string) func() {
	return func(path string) func() {
		path, release := stager.RetainView(path)
		lease, err := st.AcquirePath(path)
		if err != nil {
			log.Warn("the checkpoint of an adopted engine cannot be held", "path", path, "error", err)
		}
		return func() { release(); lease.Release() }
	}
}

// SetPeers sets the other nodes.
func (n *Node) SetPeers(list []functions.Peer) { n.store.SetPeers(list) }

// PeerURL is where this node serves blocks to others; "" if it does not.
func (n *Node) PeerURL() string { return n.Agent.o.PeerURL }

// Store is the node's store.
func (n *Node) Store() *nodestore.Store { return n.store }

// Run runs the agent until ctx ends, then closes everything below it. It is called once.
func (n *Node) Run(ctx context.Context) error {
	look, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { n.inventory.Run(look) })
	background.Go(func() {
		n.facts.Watch(look, func(uuid, description string) {
			n.log.Error("GPU", "uuid", uuid, "what", description)
			n.pushHeartbeat()
		})
	})
	background.Go(func() { n.manual.Run(look) })
	background.Go(func() { n.store.Run(look) })
	err := n.Agent.Run(ctx)
	stop()
	background.Wait()
	n.stager.Close()
	n.store.Close()
	n.facts.Close()
	return err
}

// freeMemory is the free memory of a healthy GPU, by its driver.
func (n *Node) freeMemory(index int) (functions.Bytes, bool) {
	for _, g := range n.facts.List() {
		if g.Index == index && g.Health == gpu.Healthy {
			return g.MemoryFree, true
		}
	}
	return 0, false
}

// hostLabel is the host's name as a label.
func hostLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	host, _, _ = strings.Cut(host, ".")
	b := []byte(strings.ToLower(host))
	for i := range b {
		if c := b[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			b[i] = '-'
		}
	}
	if s := strings.Trim(string(b), "-"); s != "" && len(s) <= 63 {
		return s
	}
	return "node"
}
