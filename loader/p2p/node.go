package p2p

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

type Peer struct {
	ID  string // empty if not known yet
	URL string // https://HOST:PORT of its Serve; http:// without TLS
}

type Options struct {
	// ID of this node, unique among all.
	ID string
	// URL under which others reach this node's Serve; empty if they cannot: then it
	// reads from others and serves none.
	URL string
	// TLS of all exchanges; nil is plain HTTP that is open to every process, for tests and
	// measurements.
	TLS *TLS
	// Nodes returns the other known nodes. It is called often and must not block. It
	// may include this node, which is skipped.
	Nodes func() []Peer
	// Block is the loader's block size, 8 MiB if 0. Nodes with another size exchange
	// nothing.
	Block int64
	// AnnounceEvery is the interval between announcements; 250 ms if 0.
	AnnounceEvery time.Duration
	// BlockTimeout bounds the wait for a block at a node that fetches it and answers;
	// 60 s if 0. The source is the same for both: a second request to it would slow
	// down all.
	BlockTimeout time.Duration
	// PeerTimeout is how long a node may be silent before it is left out; 10 s if 0. A
	// node whose port is closed is left out at once.
	PeerTimeout time.Duration
	// Folders of this machine that other nodes may read; nil for none.
	Folders *SharedFolders
	// Log may be nil.
	Log *slog.Logger
}

// BlockServer is the part of a loader.Loader that other nodes read from.
type BlockServer interface {
	ReadBlock(ctx context.Context, plan, name string, off, n int64) (*loader.BlockRead, error)
	// HasPlan reports whether a plan is published here.
	HasPlan(plan string) bool
}

// Node is this node among its peers: the loader.Peers of its loader, and the server of
// the other nodes. Its methods are safe for concurrent use.
type Node struct {
	o    Options
	http *http.Client

	mu     sync.Mutex // guards the fields below
	swarms map[string]*swarm
}

var _ loader.Peers = (*Node)(nil)

// New returns a Node. It starts nothing.
func New(o Options) *Node {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Block = cmp.Or(o.Block, 8<<20)
	o.AnnounceEvery = cmp.Or(o.AnnounceEvery, 250*time.Millisecond)
	o.PeerTimeout = cmp.Or(o.PeerTimeout, 10*time.Second)
	o.BlockTimeout = cmp.Or(o.BlockTimeout, time.Minute)
	n := &Node{o: o, http: httpsource.Client(httpsource.Options{}), swarms: make(map[string]*swarm)}
	transport := n.http.Transport.(*http.Transport)
	// The serving node waits for a block before it sends the response header.
	transport.ResponseHeaderTimeout = 0
	if o.TLS != nil {
		n.http.Transport = newSecureTransport(transport, o.TLS)
	}
	return n
}

// Close closes idle connections. All swarms have been left.
func (n *Node) Close() { n.http.CloseIdleConnections() }

// Join announces a staging to all known nodes and waits for the quick answers.
func (n *Node) Join(ctx context.Context, key string, files []source.File) loader.Swarm {
	known := slices.ContainsFunc(n.o.Nodes(), func(p Peer) bool { return p.ID != n.o.ID && p.URL != "" && p.URL != n.o.URL })
	if !known && n.o.URL == "" {
		return nil
	}
	nodeCtx, cancel := context.WithCancelCause(ctx)
	s := newSwarm(n, key, files, cancel)
	n.mu.Lock()
	if n.swarms[key] != nil {
		// Two stagings of one plan, under two names: the first has the swarm.
		n.mu.Unlock()
		cancel(nil)
		return nil
	}
	n.swarms[key] = s
	n.mu.Unlock()
	select {
	case <-s.announce(nodeCtx):
	case <-time.After(joinWait):
	case <-nodeCtx.Done():
	}
	s.wg.Go(func() { s.announceLoop(nodeCtx) })
	return s
}

// joinWait bounds the wait for answers at the start of a staging.
const joinWait = 250 * time.Millisecond

func (n *Node) swarm(key string) *swarm {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.swarms[key]
}

// The states of a plan at a node.
const (
	stateNone      = "none"
	stateArriving  = "arriving"
	statePublished = "published"
)

// announcement is what one node sends another about a plan, and its answer.
type announcement struct {
	ID    string `json:"id"`
	URL   string `json:"url,omitempty"`
	State string `json:"state"`
	Block int64  `json:"block,omitempty"`
	Bits  []byte `json:"bits,omitempty"` // blocks it has or fetches, low bits first
}

const (
	maxAnnouncement = 4 << 20
	checksumHeader  = "X-Thaw-Sum"
	announcePath    = "/peers/meet"
	blocksPath      = "/peers/blocks"
)

func (n *Node) Handler(server BlockServer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+announcePath, func(w http.ResponseWriter, r *http.Request) { n.serveAnnouncement(server, w, r) })
	mux.HandleFunc("GET "+blocksPath, func(w http.ResponseWriter, r *http.Request) { n.serveBlock(server, w, r) })
	mux.HandleFunc("GET "+listPath, n.o.Folders.serveList)
	mux.HandleFunc("GET "+filePath, n.o.Folders.serveRange)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := n.o.TLS.identify(r.TLS); err != nil {
			http.Error(w, "only nodes read here: "+err.Error(), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Serve serves other nodes on l until ctx ends; running transfers then have
// shutdownGrace to finish.
func (n *Node) Serve(ctx context.Context, l net.Listener, server BlockServer) error {
	srv := &http.Server{Handler: n.Handler(server), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(n.o.Log.Handler(), slog.LevelDebug)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			srv.Close()
		}
	})
	if n.o.TLS != nil {
		l = tls.NewListener(l, n.o.TLS.Server)
	}
	err := srv.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	srv.Close()
	return fmt.Errorf("peers: %w", err)
}

const shutdownGrace = 2 * time.Second

// serveAnnouncement takes in what another node has, and answers with what is here.
func (n *Node) serveAnnouncement(server BlockServer, w http.ResponseWriter, r *http.Request) {
	plan := r.URL.Query().Get("plan")
	var in announcement
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAnnouncement))
	if err != nil || json.Unmarshal(raw, &in) != nil || plan == "" || in.ID == "" {
		http.Error(w, "not an announcement", http.StatusBadRequest)
		return
	}
	if certified, err := n.o.TLS.identify(r.TLS); err != nil || !mayClaim(in.ID, certified) {
		http.Error(w, errCertificate.Error(), http.StatusForbidden)
		return
	}
	out := announcement{ID: n.o.ID, State: stateNone}
	if s := n.swarm(plan); s != nil {
		if in.ID != n.o.ID {
			s.receive(Peer{ID: in.ID, URL: in.URL}, in)
		}
		out.State, out.Block, out.Bits = stateArriving, n.o.Block, s.ownBitmap()
	} else if server.HasPlan(plan) {
		out.State = statePublished
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// serveBlock sends a block. It waits for one that is still being fetched, for as long
// as the request allows.
func (n *Node) serveBlock(server BlockServer, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var off, length, wait int64
	if _, err := fmt.Sscan(q.Get("offset")+" "+q.Get("length")+" "+q.Get("wait"), &off, &length, &wait); err != nil || length <= 0 ||
		length > maxBlockRead || wait < 0 {
		http.Error(w, "offset, length and wait are numbers", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(wait)*time.Millisecond, n.o.BlockTimeout))
	defer cancel()
	plan, name := q.Get("plan"), q.Get("file")
	if s := n.swarm(plan); s != nil && !s.mayServe(name, off) {
		// Two nodes must not wait for each other.
		http.Error(w, "another node fetches it", http.StatusConflict)
		return
	}
	read, err := server.ReadBlock(ctx, plan, name, off, length)
	switch {
	case source.KindOf(err) == source.Missing:
		http.Error(w, "neither stored nor being fetched", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "not fetched in time", http.StatusServiceUnavailable)
		return
	}
	defer read.Close()
	if _, err := read.File.Seek(read.Offset, io.SeekStart); err != nil {
		http.Error(w, "cannot be read", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", fmt.Sprint(length))
	w.Header().Set(checksumHeader, fmt.Sprintf("%016x", read.Sum))
	// A stalled reader holds a lease: bounded.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(n.o.BlockTimeout + time.Minute))
	_, _ = io.Copy(w, io.LimitReader(read.File, length)) // sendfile
}

const maxBlockRead = 256 << 20

func (n *Node) sendAnnouncement(ctx context.Context, at Peer, plan string, message announcement) (announcement, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return announcement{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(at.URL, "/")+announcePath+"?plan="+url.QueryEscape(plan),
		bytes.NewReader(body))
	if err != nil {
		return announcement{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	r, err := n.http.Do(req)
	if err != nil {
		return announcement{}, err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return announcement{}, fmt.Errorf("status %d", r.StatusCode)
	}
	var out announcement
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAnnouncement)).Decode(&out); err != nil {
		return announcement{}, err
	}
	if certified, err := n.o.TLS.identify(r.TLS); err != nil || !mayClaim(out.ID, certified) {
		return announcement{}, errCertificate
	}
	return out, nil
}

func (n *Node) requestBlock(ctx context.Context, at Peer, plan string, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	q := url.Values{"plan": {plan}, "file": {b.File.Name}, "offset": {fmt.Sprint(b.Offset)}, "length": {fmt.Sprint(b.Length)},
		"wait": {fmt.Sprint(wait.Milliseconds())}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(at.URL, "/")+blocksPath+"?"+q.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	r, err := n.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	var sum uint64
	if _, serr := fmt.Sscanf(r.Header.Get(checksumHeader), "%x", &sum); r.StatusCode != http.StatusOK || serr != nil ||
		r.ContentLength != b.Length {
		httpsource.Drain(r)
		if r.StatusCode == http.StatusConflict {
			return nil, 0, errNotFetching
		}
		return nil, 0, fmt.Errorf("status %d, %d bytes", r.StatusCode, r.ContentLength)
	}
	return r.Body, sum, nil
}
