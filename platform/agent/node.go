package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/mount"
	"github.com/thaw-dev/thaw/loader/peer"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/gpu"
)

// Config of a whole node.
type Config struct {
	Name       string // of the node; "" is the host's name
	Machine    string // whose paths this node reads; "" is Machine()
	Version    string
	Data       string // folder: store and agent live below it
	Exe        string // the thaw program
	KeeperArgs []string
	Orphan     time.Duration
	GPUs       int             // negative: all there are
	GPUMemory  functions.Bytes // of each; 0: all of it
	Memory     functions.Bytes // for replicas together; 0: 80 % of the machine's
	Sleep      functions.Bytes // of that, what they may hold asleep; 0: all of it
	Store      functions.Bytes // of checkpoints; 0: all the disk has but keepFree
	Leave      bool
	Warm       WarmMode
	Environ    func() []string
	Push       func(functions.Heartbeat)
	InFlight   func(name functions.Name, replica string) int
	Cut        func(url string) // ends our requests to an engine
	Log        *slog.Logger

	// EngineCaches says what becomes of what engines compile; "" is CachesLocal.
	EngineCaches CacheMode

	// Peering is how bytes are brought together with other nodes; nil: they are
	// not.
	Peering *Peering
}

// Node is an agent with everything it needs on a machine: loader and store,
// GPU facts, books.
type Node struct {
	*Agent
	loader *loader.Loader
	stager *Stager
	ledger *Ledger
	facts  *gpu.Facts
	shelf  *Shelf
	manual *engine.Manual
	end    func()       // of the sources
	circle *peer.Circle // nil without peering, as are the two below
	others *others
	lends  net.Listener
	seen   *hubView
}

// Open makes a node. It makes its folders and looks at the machine once, and
// starts nothing.
func Open(c Config) (*Node, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Memory == 0 {
		m, err := Memory()
		if err != nil {
			return nil, fmt.Errorf("memory: %w", err)
		}
		c.Memory = m
	}
	if c.Name == "" {
		c.Name = nodeName()
	}
	if c.Machine == "" {
		c.Machine = Machine()
	}
	st, err := openStore(c.Data, c.Store, c.Log)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	facts, err := gpu.Open()
	if err != nil {
		c.Log.Warn("the GPU driver does not answer", "error", err)
	} else if why := facts.Why(); why != "" {
		c.Log.Info("no GPUs", "why", why)
	}
	from, end := sources()
	n := &Node{facts: facts, end: end}
	n.manual = engine.NewManual(filepath.Join(c.Data, "agent", "flags"), engine.ManualOptions{
		Environ: c.Environ, Quiet: func() bool { return n.Agent.Quiet() }, Log: c.Log,
	})
	n.ledger = NewLedger(facts, st, c.GPUs, c.GPUMemory)
	o := loader.Options{Store: st, Sources: from, Links: linksOf(c.Data), Log: c.Log}
	var peerURL string
	if p := c.Peering; p != nil {
		peerURL, n.others, n.lends = p.URL, newOthers(p.Nodes), p.Listener
		n.circle = peer.New(peer.Options{ID: c.Name, URL: p.URL, Token: p.Token, Nodes: n.others.list, Folders: p.folders(), Log: c.Log})
		from[loader.LentScheme] = n.circle.Borrowed()
		o.Neighbours = n.circle
	}
	n.loader = loader.New(o)
	n.shelf = &Shelf{node: c.Name, store: st, loader: n.loader}
	n.seen = newHubView(c.Data, st, from, c.Log)
	n.ledger.loads = n.shelf.Stats
	arriving := filepath.Join(c.Data, "agent", "arriving")
	if err := mount.Sweep(arriving); err != nil {
		c.Log.Warn("what an earlier agent mounted stays", "error", err)
	}
	n.stager = NewStager(n.loader, StagerOptions{
		Arriving: arriving, Early: earlyFrom, Caches: caches(c), Trust: c.EngineCaches == CachesTrust, Sources: from, Log: c.Log,
	})
	n.Agent = New(Options{
		ID: c.Name, Version: c.Version, Machine: c.Machine, Dir: filepath.Join(c.Data, "agent"), Exe: c.Exe, KeeperArgs: c.KeeperArgs,
		Orphan: c.Orphan, Memory: c.Memory, Sleep: c.Sleep, Stager: n.stager, Books: n.ledger, Hold: hold(st, n.stager, c.Log), Lost: n.stager.Lost, PeerURL: peerURL, Borrows: n.circle != nil, Environ: c.Environ, Leave: c.Leave, Warm: c.Warm,
		Push: c.Push, InFlight: c.InFlight, Cut: c.Cut, FreeGPU: n.free, Manual: n.manual, Log: c.Log,
	})
	return n, nil
}

// caches of what engines compile.
func caches(c Config) *enginecache.Caches {
	if c.EngineCaches == CachesOff {
		return nil
	}
	return enginecache.New(enginecache.Options{Dir: filepath.Join(c.Data, "engine-caches"), Log: c.Log})
}

// keepFree is left on the disk for logs and everything else.
const keepFree = 256 << 20

// earlyFrom is how many missing bytes make an engine start before they are
// here: less than that comes while a process is started.
const earlyFrom = 8 << 20

// hold leases the checkpoint that a path of the store belongs to, so that it is
// not evicted under an engine. Folders used in place are nobody's to evict.
func hold(st *store.Store, stager *Stager, log *slog.Logger) func(path string) func() {
	return func(path string) func() {
		path, release := stager.Hold(path)
		lease, err := st.AcquirePath(path)
		if err != nil {
			log.Warn("the checkpoint of an adopted engine cannot be held", "path", path, "error", err)
		}
		return func() { release(); lease.Release() }
	}
}

// Shelf is the node's store.
func (n *Node) Shelf() *Shelf { return n.shelf }

// Run is the agent's life, and then everything below it is closed. It is
// called once.
func (n *Node) Run(ctx context.Context) error {
	look, stop := context.WithCancel(ctx)
	var side sync.WaitGroup
	side.Go(func() { n.ledger.Run(look) })
	side.Go(func() {
		n.facts.Watch(look, func(uuid, what string) { n.log.Error("GPU", "uuid", uuid, "what", what); n.push() })
	})
	side.Go(func() { n.manual.Run(look) })
	side.Go(func() { n.seen.run(look, func() int64 { return n.loader.Stats().Staged }) })
	if n.lends != nil {
		side.Go(func() {
			// Without it this node is alone, and serves as before.
			if err := n.circle.Serve(look, n.lends, n.loader); err != nil {
				n.log.Error("blocks are not lent any more", "error", err)
			}
		})
	}
	err := n.Agent.Run(ctx)
	stop()
	side.Wait()
	n.stager.Close()
	n.loader.Close()
	if n.circle != nil {
		n.circle.Close()
	}
	n.end()
	n.facts.Close()
	return err
}

// free is the memory of a GPU that nobody holds now, as its driver says.
func (n *Node) free(index int) (functions.Bytes, bool) {
	for _, g := range n.facts.List() {
		if g.Index == index && g.Health == gpu.Healthy {
			return g.MemoryFree, true
		}
	}
	return 0, false
}

// nodeName is the host's name as a label.
func nodeName() string {
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

// ReadToken reads a file with a token in it.
func ReadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("join token: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" || len(t) > 512 || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("join token: " + path + " holds no token")
	}
	return t, nil
}
