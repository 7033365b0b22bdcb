package nodeloader

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// SocketPath is the socket's path below Options.Dir. Pods mount its folder and nothing
// else of Options.Dir.
const SocketPath = "sockets/loader.sock"

// Options configure a Daemon. Zero bounds mean their defaults.
type Options struct {
	Node    string           // the node's name in Kubernetes
	Version string           // the program's version
	Dir     string           // the folder of the store and the socket: an absolute path
	Store   *nodestore.Store // the node's store
	PeerURL string           // URL at which this node serves blocks to others; "": it does not
	Memory  functions.Bytes  // the machine's memory

	// IdentifyPod returns the UID of the pod that dialled: the function IdentifyPod or
	// IdentifyAny.
	IdentifyPod func(*net.UnixConn) (uid string, err error)
	// Send sends a report to the controller and does not block; nil: there is none.
	// Connected reports whether there is a connection to the controller; nil: this loader
	// has no controller. With one, nothing is staged before its first list of owners.
	Send      func(controlstream.Report)
	Connected func() bool

	// Private means that the store is closed to other users: a pod gets its checkpoints
	// as open folders over the socket.
	Private bool

	// Allow lists prefixes of sources that may be staged, such as az://acct/models;
	// empty: all sources. Folders of the node are staged only if they are in one of
	// Folders.
	Allow   []string
	Folders []string

	Pods        int             // connected pods; 512
	Lines       int             // of one pod per second; 200
	PodStages   int             // running stagings of one pod; 16
	Stages      int             // running stagings of all pods; further ones wait; 64
	PodBytes    functions.Bytes // bytes that one pod holds or has requested; 0: the store's size
	PrefetchFor time.Duration   // how long a prefetch waits for its pod; 5 minutes
	LockWait    time.Duration   // for another daemon to release the folder; 30 s

	Log *slog.Logger // nil discards
}

// Daemon is the loader of a node. Its methods may be called concurrently.
type Daemon struct {
	o        Options
	instance string // identifies this process among the node's loaders, in heartbeats

	changes newest.Signal // the node's checkpoints may have changed: a heartbeat is sent soon
	slots   chan struct{} // one per running staging of a pod
	reading chan struct{} // one entry while a checkpoint is verified
	conns   chan struct{} // one per connection
	serving atomic.Bool   // shims are served
	ready   chan struct{} // closed once shims are served

	counts      counters
	prefetching sync.WaitGroup // the goroutines of prefetches
	leases      leaseTable
	owners      podOwners

	mu            sync.Mutex             // guards all fields below; never held over I/O
	ctx           context.Context        // nil before Run and at its end
	connections   map[string]int         // connections by pod UID, including those before their hello
	complainAfter time.Time              // refusals are not logged until then
	shims         map[string]*shim       // by pod UID
	prefetches    map[string]*prefetch   // by source and file patterns
	pendingStops  map[string]pendingStop // for pods that are not connected, by UID
	seq           uint64                 // of the last heartbeat
	changeCount   uint64                 // counts changes of the node's checkpoints
	lastCached    string                 // the node's checkpoints at the last heartbeat
}

// pendingStop is a Drain for a pod whose shim is not connected now.
type pendingStop struct {
	controlstream.Drain
	at time.Time
}

const (
	helloWait         = 10 * time.Second // for a shim's first line
	writeWait         = 10 * time.Second // to write a line
	stopWait          = 2 * time.Minute  // how long a Drain is kept for its pod
	maxStops          = 256
	maxPodConnections = 4 // connections of one pod: one is in use, older ones are ending
)

// New returns a Daemon; it starts nothing.
func New(o Options) *Daemon {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Send == nil {
		o.Send = func(controlstream.Report) {}
	}
	governed := o.Connected != nil
	if !governed {
		o.Connected = func() bool { return false }
	}
	o.Pods, o.Lines, o.PodStages, o.Stages = cmp.Or(o.Pods, 512), cmp.Or(o.Lines, 200), cmp.Or(o.PodStages, 16),
		cmp.Or(o.Stages, 64)
	o.PrefetchFor, o.LockWait = cmp.Or(o.PrefetchFor, 5*time.Minute), cmp.Or(o.LockWait, 30*time.Second)
	folder := stateFolder(o.Dir)
	d := &Daemon{
		o: o, instance: strconv.FormatInt(time.Now().UnixNano(), 36),
		changes: newest.NewSignal(), slots: make(chan struct{}, o.Stages), reading: make(chan struct{}, 1), ready: make(chan struct{}),
		conns: make(chan struct{}, o.Pods),
		shims: map[string]*shim{}, connections: map[string]int{}, prefetches: map[string]*prefetch{}, pendingStops: map[string]pendingStop{},
		owners: podOwners{folder: folder, governed: governed, log: o.Log, changed: make(chan struct{})},
	}
	d.leases = leaseTable{folder: folder, ending: d.ending, log: o.Log, counts: map[string]int{}}
	return d
}

var ErrInUse = errors.New("another loader uses this folder")

// Run serves until ctx ends, and then returns nil. Running stagings stop then; the next
// daemon continues them. It is called once.
func (d *Daemon) Run(ctx context.Context) error {
	lock, err := d.lock(ctx)
	if err != nil || lock == nil {
		return err
	}
	defer lock.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	d.ctx = ctx
	d.mu.Unlock()
	d.owners.load()
	dropLeases := d.leases.adopt(d.o.Store.Checkpoints())
	defer dropLeases()
	socket := filepath.Join(d.o.Dir, SocketPath)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	l, err := jsonsocket.ListenPublic(socket) // pods have users of their own; IdentifyPod checks the caller
	if err != nil {
		return err
	}
	d.serving.Store(true)
	close(d.ready)
	d.o.Log.Info("loading for pods", "node", d.o.Node, "socket", socket, "peer url", d.o.PeerURL)

	var parts sync.WaitGroup
	parts.Go(func() { d.o.Store.Run(ctx) })
	parts.Go(func() { d.sendHeartbeats(ctx, dropLeases) })
	parts.Go(func() { d.keepDiskFree(ctx) })
	stop := context.AfterFunc(ctx, func() {
		d.stopAccepting()
		l.Close()
	})
	defer stop()
	err = d.accept(ctx, l, &parts)
	d.stopAccepting()
	cancel()
	parts.Wait()
	d.prefetching.Wait()
	_ = os.Remove(socket) // ours while the lock is held
	return err
}

// Ready returns a channel that is closed once shims are served.
func (d *Daemon) Ready() <-chan struct{} { return d.ready }

// stopAccepting refuses new stagings.
func (d *Daemon) stopAccepting() {
	d.serving.Store(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx = nil
}

// ending reports whether this loader is ending or not running.
func (d *Daemon) ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endingLocked()
}

// endingLocked is ending; mu must be held.
func (d *Daemon) endingLocked() bool { return d.ctx == nil || d.ctx.Err() != nil }

// lock locks the folder, so that no two daemons serve one socket.
func (d *Daemon) lock(ctx context.Context) (*flock.Flock, error) {
	if err := os.MkdirAll(d.o.Dir, 0o755); err != nil {
		return nil, err
	}
	// Not readable for pods: a process that can open the file can lock it.
	lock := flock.New(filepath.Join(d.o.Dir, "loader.lock"), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if !ok && err == nil {
		d.o.Log.Info("another loader uses this folder; waiting for its end", "dir", d.o.Dir, "for", d.o.LockWait.String())
		waiting, cancel := context.WithTimeout(ctx, d.o.LockWait)
		defer cancel()
		ok, err = lock.TryLockContext(waiting, 50*time.Millisecond)
	}
	switch {
	case ok:
		return lock, nil
	case ctx.Err() != nil:
		return nil, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%s: %w", d.o.Dir, ErrInUse)
	}
	return nil, fmt.Errorf("%s: %w", lock.Path(), err)
}

// accept serves shims until the listener is closed.
func (d *Daemon) accept(ctx context.Context, l *net.UnixListener, parts *sync.WaitGroup) error {
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			// No file descriptors left, or the like: a temporary error.
			d.o.Log.Error("a pod's connection cannot be accepted", "error", err)
			backoff.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		select {
		case d.conns <- struct{}{}:
		default:
			d.counts.refused.Add(1)
			d.complain("too many connections", "most", d.o.Pods)
			conn.Close()
			continue
		}
		parts.Go(func() {
			defer func() { <-d.conns }()
			d.serve(ctx, conn)
		})
	}
}

// countConnection adds n to a pod's connections; false if there are too many.
func (d *Daemon) countConnection(uid string, n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > 0 && d.connections[uid] >= maxPodConnections {
		return false
	}
	if d.connections[uid] += n; d.connections[uid] == 0 {
		delete(d.connections, uid)
	}
	return true
}

// complain logs an event that a dialling process can repeat at will: once a second.
func (d *Daemon) complain(description string, args ...any) {
	d.mu.Lock()
	now := time.Now()
	suppressed := now.Before(d.complainAfter)
	if !suppressed {
		d.complainAfter = now.Add(time.Second)
	}
	d.mu.Unlock()
	if !suppressed {
		d.o.Log.Warn(description, args...)
	}
}

func (d *Daemon) OnUpdate(m controlstream.Update) {
	if m.Peers != nil {
		// A controller that has just started sends none, and the discovered nodes are kept.
		d.o.Store.SetPeers(*m.Peers)
	}
	if m.Owners != nil {
		d.owners.set(m.Owners)
	}
	for _, r := range m.Prefetch {
		d.prefetch(r)
	}
	for _, s := range m.Stop {
		d.stopPod(s)
	}
}

// stopPod sends the controller's stop to a pod, or keeps it until the pod connects.
func (d *Daemon) stopPod(s controlstream.Stop) {
	message := controlstream.Drain{Seconds: s.Seconds, Reason: s.Reason}
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.shims[s.UID]; at != nil {
		at.out.put(controlstream.ToPod{Stop: &message})
		return
	}
	maps.DeleteFunc(d.pendingStops, func(_ string, old pendingStop) bool { return time.Since(old.at) > stopWait })
	if len(d.pendingStops) < maxStops {
		d.pendingStops[s.UID] = pendingStop{message, time.Now()}
	}
}

// PeerTLS is the TLS between loaders: each shows the loaders' certificate and accepts no
// other. of returns the identity for each connection.
func PeerTLS(of func() (*mtls.Identity, error)) *p2p.TLS {
	return &p2p.TLS{
		Server:  mtls.Server(of, controlstream.NameLoader),
		Connect: mtls.Connector(of, func(id *mtls.Identity) *tls.Config { return mtls.Client(id, controlstream.NameLoader) }),
	}
}

// stateFolder is the folder in which a loader stores what the next one reads.
type stateFolder string

// write stores v in a file, atomically.
func (s stateFolder) write(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(string(s), name), b, 0o600)
}

// read reads at most maximum bytes that the previous loader stored. The error is
// os.ErrNotExist if there are none.
func (s stateFolder) read(name string, maximum int64, v any) error {
	f, err := os.Open(filepath.Join(string(s), name))
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewDecoder(io.LimitReader(f, maximum)).Decode(v)
}
