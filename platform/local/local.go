package local

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/quota"
)

// Options of a Local.
type Options struct {
	// Config is that of the agent in this process. New sets its functions; the server's
	// files are in its Data too.
	agent.Config
	Catalog orchestrator.Catalog // which functions exist; changes are announced by Orchestrator.Changed
	// AgentTLS returns the configuration of connections to an agent of another machine
	// (enroll.Server); nil: agents are reached by plain HTTP, for tests.
	AgentTLS  func(id string) *tls.Config
	Alone     func() bool        // no agent has ever joined; nil: some may
	Policy    placement.Policy   // zero: placement.DefaultPolicy
	Foresight *foresight.Options // forecasts demand; nil: off. New sets its Prefetch
}

// Local is the backend. Its methods, and those of its Orchestrator, are safe for
// concurrent use.
type Local struct {
	*orchestrator.Orchestrator
	o      Options
	node   *agent.Node
	lock   *flock.Flock
	shared *sharedFolders

	machine string // host to which the catalog's local paths belong
	epoch   int64

	mu     sync.Mutex
	remote map[string]*remoteAgent // by agent id
	first  sync.Once
	ready  chan struct{}
}

// remoteAgent is an agent of another machine.
type remoteAgent struct {
	*agent.Client
	seen    time.Time // last heartbeat
	peerURL string    // where it serves blocks; "": nowhere
	shares  bool      // it stages this machine's folders
}

// ErrInUse means that another server has the folder.
var ErrInUse = errors.New("another thaw serve uses this folder: stop it, or name another with --data DIR")

// New locks the folder and raises its epoch. It starts nothing. The data path, which
// refers to the backend, is attached before Run.
func New(o Options) (*Local, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	lock := flock.New(filepath.Join(o.Data, "local.lock"))
	if ok, err := lock.TryLock(); err != nil {
		return nil, fmt.Errorf("local: %s cannot be locked: %w (name a folder on a local disk with --data DIR)", o.Data, err)
	} else if !ok {
		return nil, fmt.Errorf("local: %s: %w", o.Data, ErrInUse)
	}
	l, err := newLocal(o)
	if err != nil {
		lock.Unlock()
		return nil, err
	}
	l.lock = lock
	return l, nil
}

func newLocal(o Options) (*Local, error) {
	epoch, err := nextEpoch(o.Data)
	if err != nil {
		return nil, err
	}
	l := &Local{o: o, epoch: epoch, remote: map[string]*remoteAgent{}, ready: make(chan struct{}), shared: &sharedFolders{catalog: o.Catalog},
		machine: nodestore.Machine()}
	if o.Peering != nil {
		peering := *o.Peering
		peering.SharedFolder = l.shared.folder
		o.Peering = &peering
	}
	o.Push = func(hb functions.Heartbeat) {
		l.Orchestrator.Heartbeat(hb, l.node)
		l.first.Do(func() { close(l.ready) })
	}
	teamUse, err := quota.OpenLedger(filepath.Join(o.Data, "teams.json"))
	if teamUse == nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	if err != nil {
		o.Log.Error("the usage of teams cannot be read", "error", err)
	}
	l.node, err = agent.Open(o.Config)
	if err != nil {
		return nil, fmt.Errorf("local: %w", err)
	}
	if o.Foresight != nil {
		ahead := *o.Foresight
		ahead.Prefetch = l.stageModel
		o.Foresight = &ahead
	}
	l.Orchestrator = orchestrator.New(orchestrator.Options{
		Foresight: o.Foresight,
		Ledger:    teamUse,
		Epoch:     epoch, Catalog: o.Catalog, Machine: l.machine, Here: l.node.ID(), Policy: o.Policy, Log: o.Log, Alone: o.Alone,
	})
	return l, nil
}

// DataPath is the activator in this process.
type DataPath interface {
	orchestrator.DataPath
	agent.Requests
}

// Attach sets the data path. It is called before Run.
func (l *Local) Attach(path DataPath) {
	l.node.Attach(path)
	l.Orchestrator.Attach(path)
}

// Changed applies a change of the catalog.
func (l *Local) Changed() {
	l.shared.invalidate()
	l.Orchestrator.Changed()
	l.prepareForkServers()
}

// prepareForkServers starts the fork servers of known models before their first requests.
func (l *Local) prepareForkServers() {
	models := l.o.Catalog.Models()
	for _, m := range models[:min(len(models), maxPrewarmModels)] {
		l.node.PrepareForkServer(m.Spec)
	}
}

// maxPrewarmModels bounds the examined models: they share few environments.
const maxPrewarmModels = 256

// Ready is closed when the agent here has adopted running engines and accepts loads.
func (l *Local) Ready() <-chan struct{} { return l.ready }

// Run runs the loop and the agent until ctx ends or one of them fails. It returns when the
// engines have ended, unless Options.KeepEngines keeps them. It is called once.
func (l *Local) Run(ctx context.Context) error {
	defer l.lock.Unlock()
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return l.Orchestrator.Run(ctx) })
	parts.Go(func() error { return l.node.Run(ctx) })
	err := parts.Wait()
	l.mu.Lock()
	for _, c := range l.remote {
		c.Close()
	}
	l.mu.Unlock()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// NodeID is the id of the node of this process.
func (l *Local) NodeID() string { return l.node.ID() }

// GPUs counts those of the nodes that are there.
func (l *Local) GPUs() (n int) {
	for _, node := range l.Nodes() {
		if !node.Lost {
			n += len(node.GPUs)
		}
	}
	return n
}

// OnHeartbeat handles the heartbeat of an agent that joined. The caller has checked that it
// is that agent's; sameMachine: it came over loopback.
func (l *Local) OnHeartbeat(hb functions.Heartbeat, sameMachine bool) error {
	if !functions.IsLabel(hb.AgentID) {
		return fmt.Errorf("agent_id %.80q is no DNS label", hb.AgentID)
	}
	if hb.AgentID == l.node.ID() {
		return fmt.Errorf("agent_id %s is the server's own: give the agent another --name", hb.AgentID)
	}
	if hb.Epoch-l.epoch > functions.MaxEpochStep {
		return fmt.Errorf("epoch %d is not one of a server of this folder, whose epoch is %d", hb.Epoch, l.epoch)
	}
	if l.o.AgentTLS != nil && !strings.HasPrefix(hb.URL, "https://") {
		return fmt.Errorf("url %.200q is not where an agent answers over TLS: want https://HOST:PORT", hb.URL)
	}
	if hb.PeerURL != "" && !httpURL(hb.PeerURL) {
		return fmt.Errorf("peer_url %.200q is not where an agent answers: want http://HOST:PORT", hb.PeerURL)
	}
	if !httpURL(hb.URL) {
		return fmt.Errorf("url %.200q is not where an agent answers: want http://HOST:PORT", hb.URL)
	}
	if err := checkEndpoints(&hb, sameMachine); err != nil {
		return err
	}
	l.mu.Lock()
	if err := l.makeWayLocked(hb.AgentID, hb.URL); err != nil {
		l.mu.Unlock()
		return err
	}
	was := l.remote[hb.AgentID]
	if was == nil && len(l.remote) >= maxAgents {
		l.mu.Unlock()
		return fmt.Errorf("there are %d agents already", maxAgents)
	}
	l.normalizeBorrowed(&hb)
	now := &remoteAgent{seen: time.Now(), peerURL: hb.PeerURL, shares: hb.Borrows}
	if was != nil && was.URL() == strings.TrimRight(hb.URL, "/") {
		now.Client = was.Client
	} else {
		var secure *tls.Config
		if l.o.AgentTLS != nil {
			secure = l.o.AgentTLS(hb.AgentID)
		}
		l.forgetLocked(hb.AgentID)
		now.Client = agent.NewClient(hb.URL, secure)
	}
	l.remote[hb.AgentID] = now
	l.mu.Unlock()
	l.node.SetPeers(l.Peers(l.node.ID()))
	l.Orchestrator.Heartbeat(hb, now.Client)
	return nil
}

// makeWayLocked forgets lost agents, and an agent at url without recent heartbeats if
// another reports that url; it refuses the url of an agent with recent heartbeats. mu must be held.
func (l *Local) makeWayLocked(id, url string) error {
	for other, c := range l.remote {
		silent := time.Since(c.seen)
		switch {
		case other == id:
		case silent > forgetAfter:
			l.forgetLocked(other)
		case c.URL() != strings.TrimRight(url, "/"):
		case silent <= liveWithin:
			return fmt.Errorf("url %.200q is that of the agent %s, which was heard %v ago: end that agent, or use another address", url, other,
				silent.Round(time.Millisecond))
		default:
			l.forgetLocked(other)
		}
	}
	return nil
}

const (
	liveWithin  = 6 * time.Second // after its heartbeat another agent cannot take an agent's address
	forgetAfter = time.Minute     // after its last heartbeat an agent is forgotten
)

// Forget deletes the state of a removed agent.
func (l *Local) Forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(id)
}

func (l *Local) forgetLocked(id string) {
	if c := l.remote[id]; c != nil {
		c.Close()
	}
	delete(l.remote, id)
}

// checkEndpoints checks that requests for an agent's replicas go to the agent, or to engines
// on loopback if it is on the server's machine.
func checkEndpoints(hb *functions.Heartbeat, sameMachine bool) error {
	own := strings.TrimRight(hb.URL, "/") + "/replicas/"
	for _, m := range hb.Models {
		port, loopback := strings.CutPrefix(m.Endpoint, "http://127.0.0.1:")
		_, err := strconv.ParseUint(port, 10, 16)
		if m.Endpoint == "" || strings.HasPrefix(m.Endpoint, own) || sameMachine && loopback && err == nil {
			continue
		}
		return fmt.Errorf("the replica %s has the endpoint %.200q, which is not below the agent's own URL: want %.200s/ID", functions.Clip(m.ID),
			m.Endpoint, strings.TrimRight(own, "/"))
	}
	return nil
}

// EngineTLS returns the configuration of connections to the agent that answers at addr, for
// requests to its replicas; nil if no agent does.
func (l *Local) EngineTLS(addr string) *tls.Config {
	if l.o.AgentTLS == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, c := range l.remote {
		if u, err := url.Parse(c.URL()); err == nil && u.Host == addr {
			return l.o.AgentTLS(id)
		}
	}
	return nil
}

// peerTTL is how long a node is announced to others after its last heartbeat. A node that
// has ended costs them a refused connection.
const peerTTL = 15 * time.Second

// Peers lists the block servers other than agent.
func (l *Local) Peers(agent string) []functions.Peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []functions.Peer
	if at := l.node.PeerURL(); at != "" && agent != l.node.ID() {
		out = append(out, functions.Peer{ID: l.node.ID(), URL: at})
	}
	for id, c := range l.remote {
		if id != agent && c.peerURL != "" && time.Since(c.seen) <= peerTTL {
			out = append(out, functions.Peer{ID: id, URL: c.peerURL})
		}
	}
	slices.SortFunc(out, func(a, b functions.Peer) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// httpURL reports whether s is an HTTP URL with a host.
func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.Port() != "" && u.Port() != "0" &&
		u.User == nil && u.RawQuery == ""
}

// maxAgents bounds the memory used by joins under new names.
const maxAgents = 4096

// Logs opens the log of a replica on any node: its last lines and, with follow, new ones
// until ctx ends. The log of a replica that has ended is on the node of its cold start, as
// long as it is kept. functions.ErrNotFound: it has no log.
func (l *Local) Logs(ctx context.Context, replica string, lines int, follow bool) (io.ReadCloser, error) {
	switch n := l.NodeOf(replica).(type) {
	case *agent.Node:
		return n.Logs(ctx, replica, lines, follow)
	case *agent.Client:
		return n.Logs(ctx, replica, lines, follow)
	}
	for _, t := range l.ColdStarts(0) {
		if t.Replica != replica {
			continue
		}
		l.mu.Lock()
		c := l.remote[t.Node]
		l.mu.Unlock()
		if c != nil {
			return c.Logs(ctx, replica, lines, follow)
		}
	}
	return l.node.Logs(ctx, replica, lines, follow)
}

// nextEpoch raises the epoch in DIR/epoch and returns it. The epoch is on disk before
// it is used, so that two runs of a server never share one.
func nextEpoch(dir string) (int64, error) {
	path := filepath.Join(dir, "epoch")
	var epoch int64
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, fmt.Errorf("epoch: %w", err)
	default:
		epoch, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || epoch < 0 {
			return 0, fmt.Errorf(
				"epoch: %s holds %.40q, want a number; agents refuse a server whose epoch went back, so put one higher than any before", path, b)
		}
	}
	epoch++
	if err := durable.WriteFile(path, fmt.Appendf(nil, "%d\n", epoch), 0o600); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return epoch, nil
}
