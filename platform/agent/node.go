package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/mount"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/gpu"
)

// Config of a whole node: that of its agent, and of what lies below it. Open sets those of
// the agent's options that are parts of the node.
type Config struct {
	Options                      // ID: "" is the host's name; Machine: "" is nodestore.Machine; Memory: 0 is 80 % of the machine's
	Data         string          // folder: store and agent live below it
	GPUs         int             // negative: all there are
	GPUMemory    functions.Bytes // of each; 0: all of it
	Store        functions.Bytes // of checkpoints; 0: all the disk has but 256 MiB
	EngineCaches CacheMode       // what happens to compile caches; "" is CachesLocal
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
	c.ID = cmp.Or(c.ID, hostLabel())
	c.Machine = cmp.Or(c.Machine, nodestore.Machine())
	sh, err := nodestore.Open(nodestore.Options{Node: c.ID, Data: c.Data, Budget: c.Store, Peering: c.Peering, Log: c.Log})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	facts, err := gpu.Open()
	if err != nil {
		c.Log.Warn("the GPU driver does not answer", "error", err)
	} else if reason := facts.Why; reason != "" {
		c.Log.Info("no GPUs", "why", reason)
	}
	n := &Node{facts: facts, store: sh}
	n.inventory = NewInventoryPoller(facts, sh, c.GPUs, c.GPUMemory)
	if found := facts.List(); c.GPUs > len(found) {
		c.Log.Warn("more GPUs are declared than the driver shows: engines get them all the same", "gpus", c.GPUs, "found", len(found))
	}
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
	o := c.Options
	o.Dir, o.Stager, o.Inventory = filepath.Join(c.Data, "agent"), n.stager, n.inventory
	o.RetainCheckpoint, o.FilesLost = retainCheckpoint(sh.Checkpoints(), n.stager, c.Log), n.stager.ViewLost
	o.PeerURL, o.SharedFolders = peerURL, c.Peering != nil
	o.FreeGPU, o.GPUHolders, o.GPUMemoryOf = n.freeMemory, n.facts.Holders, n.facts.HeldBy
	n.Agent = New(o)
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

func (n *Node) SetPeers(list []functions.Peer) { n.store.SetPeers(list) }

// PeerURL is where this node serves blocks to others; "" if it does not.
func (n *Node) PeerURL() string { return n.Agent.o.PeerURL }

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

func hostLabel() string {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	host, _, _ = strings.Cut(host, ".")
	host = regexp.MustCompile("[^a-z0-9]").ReplaceAllString(strings.ToLower(host), "-")
	if s := strings.Trim(host, "-"); s != "" && len(s) <= 63 {
		return s
	}
	return "node"
}
