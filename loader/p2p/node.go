package p2p

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
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

// Peer is another node.
type Peer struct {
	ID  string // empty where it is not known yet
	URL string // http://HOST:PORT of its Serve
}

// Options of a circle.
type Options struct {
	// ID of this node, one of its own among all.
	ID string
	// URL under which others reach this node's Serve; empty where they do not:
	// then it borrows, and lends to nobody.
	URL string
	// Token that all nodes share.
	Token string
	// Nodes are the others that are known now. It is called often and does not
	// wait. It may name this node, which is passed over.
	Nodes func() []Peer
	// Block is the loader's, 8 MiB when 0. Nodes with other blocks are strangers.
	Block int64
	// AnnounceEvery is how often nodes tell each other what they have; 250 ms when 0.
	AnnounceEvery time.Duration
	// BlockTimeout is how long a block is waited for at a node that is at it and
	// answers; 60 s when 0. The source is the same for both: asking it too would
	// make it slower for all.
	BlockTimeout time.Duration
	// PeerTimeout is how long a node may say nothing before it is left out; 10 s when
	// 0. One whose port is closed is left out at once.
	PeerTimeout time.Duration
	// Folders of this machine that are lent as they are; nil lends none.
	Folders *SharedFolders
	// Log may be nil.
	Log *slog.Logger
}

// BlockServer is what of a loader is lent.
type BlockServer interface {
	ReadBlock(ctx context.Context, plan, name string, off, n int64) (*loader.BlockRead, error)
	// HasPlan reports whether a plan is published here.
	HasPlan(plan string) bool
}

// Node is this node among the others: a loader's Neighbours, and the server
// that the others ask. Its methods may be called concurrently.
type Node struct {
	o     Options
	http  *http.Client
	token [sha256.Size]byte

	mu     sync.Mutex // guards the fields below
	swarms map[string]*swarm
}

var _ loader.Peers = (*Node)(nil)

// New returns a circle. It starts nothing.
func New(o Options) *Node {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Block == 0 {
		o.Block = 8 << 20
	}
	if o.AnnounceEvery == 0 {
		o.AnnounceEvery = 250 * time.Millisecond
	}
	if o.PeerTimeout == 0 {
		o.PeerTimeout = 10 * time.Second
	}
	if o.BlockTimeout == 0 {
		o.BlockTimeout = time.Minute
	}
	n := &Node{o: o, http: httpsource.Client(httpsource.Options{}), token: sha256.Sum256([]byte(o.Token)), swarms: make(map[string]*swarm)}
	// A block is waited for at its lender, before the head of the answer.
	n.http.Transport.(*http.Transport).ResponseHeaderTimeout = 0
	return n
}

// Close lets idle connections go. All companies have been left.
func (n *Node) Close() { n.http.CloseIdleConnections() }

// Join tells all nodes that are known of a staging, and hears what they have.
// It waits for the quick ones.
func (n *Node) Join(ctx context.Context, key string, files []source.File) loader.Swarm {
	known := slices.ContainsFunc(n.o.Nodes(), func(p Peer) bool { return p.ID != n.o.ID && p.URL != "" && p.URL != n.o.URL })
	if !known && n.o.URL == "" {
		return nil
	}
	life, cancel := context.WithCancelCause(ctx)
	s := newSwarm(n, key, files, cancel)
	n.mu.Lock()
	if n.swarms[key] != nil {
		// Two stagings of one plan, under two names: the first has the company.
		n.mu.Unlock()
		cancel(nil)
		return nil
	}
	n.swarms[key] = s
	n.mu.Unlock()
	select {
	case <-s.announce(life):
	case <-time.After(joinWait):
	case <-life.Done():
	}
	s.wg.Go(func() { s.announceLoop(life) })
	return s
}

// joinWait is how long the start of a staging waits for the others' answers.
const joinWait = 250 * time.Millisecond

func (n *Node) swarm(key string) *swarm {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.swarms[key]
}

func (n *Node) removeSwarm(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.swarms, key)
}

// The states of a plan at a node.
const (
	stateNone      = "none"
	stateArriving  = "arriving"
	statePublished = "published"
)

// announcement is what one node tells another of a plan, and the answer to it.
type announcement struct {
	ID    string `json:"id"`
	URL   string `json:"url,omitempty"`
	State string `json:"state"`
	Block int64  `json:"block,omitempty"`
	Bits  []byte `json:"bits,omitempty"` // what it has or is at, a bit per block, low bits first
}

const (
	maxAnnouncement = 4 << 20
	checksumHeader  = "X-Thaw-Sum"
	announcePath    = "/peers/meet"
	blocksPath      = "/peers/blocks"
)

// Handler is what other nodes ask of this one.
func (n *Node) Handler(lender BlockServer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+announcePath, func(w http.ResponseWriter, r *http.Request) { n.serveAnnouncement(lender, w, r) })
	mux.HandleFunc("GET "+blocksPath, func(w http.ResponseWriter, r *http.Request) { n.serveBlock(lender, w, r) })
	mux.HandleFunc("GET "+listPath, n.o.Folders.serveList)
	mux.HandleFunc("GET "+filePath, n.o.Folders.serveRange)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum := sha256.Sum256([]byte(secret))
		if subtle.ConstantTimeCompare(sum[:], n.token[:]) != 1 || !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "nodes show the join token", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Serve answers other nodes on l until ctx ends; then what is being lent may
// end within grace.
func (n *Node) Serve(ctx context.Context, l net.Listener, lender BlockServer) error {
	srv := &http.Server{Handler: n.Handler(lender), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 16 << 10,
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
	err := srv.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	srv.Close()
	return fmt.Errorf("peers: %w", err)
}

const shutdownGrace = 2 * time.Second

// serveAnnouncement hears what another node has, and answers with what is here.
func (n *Node) serveAnnouncement(lender BlockServer, w http.ResponseWriter, r *http.Request) {
	plan := r.URL.Query().Get("plan")
	var in announcement
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAnnouncement))
	if err != nil || json.Unmarshal(raw, &in) != nil || plan == "" || in.ID == "" {
		http.Error(w, "not a word of a node", http.StatusBadRequest)
		return
	}
	out := announcement{ID: n.o.ID, State: stateNone}
	if s := n.swarm(plan); s != nil {
		if in.ID != n.o.ID {
			s.receive(Peer{ID: in.ID, URL: in.URL}, in)
		}
		out.State, out.Block, out.Bits = stateArriving, n.o.Block, s.ownBitmap()
	} else if lender.HasPlan(plan) {
		out.State = statePublished
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// serveBlock gives a block. One that is still on its way here is waited for, for as
// long as the other node says it will.
func (n *Node) serveBlock(lender BlockServer, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var off, length, wait int64
	if _, err := fmt.Sscan(q.Get("offset")+" "+q.Get("length")+" "+q.Get("wait"), &off, &length, &wait); err != nil || length <= 0 || length > maxBlockRead || wait < 0 {
		http.Error(w, "offset, length and wait are numbers", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(wait)*time.Millisecond, n.o.BlockTimeout))
	defer cancel()
	plan, name := q.Get("plan"), q.Get("file")
	if s := n.swarm(plan); s != nil && !s.mayServe(name, off) {
		// Two nodes that each wait for the other to bring it would wait long.
		http.Error(w, "another node is at it", http.StatusConflict)
		return
	}
	read, err := lender.ReadBlock(ctx, plan, name, off, length)
	switch {
	case source.KindOf(err) == source.Missing:
		http.Error(w, "neither here nor on its way", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "not here in time", http.StatusServiceUnavailable)
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
	// A reader that takes nothing holds a lease: not for ever.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(n.o.BlockTimeout + time.Minute))
	_, _ = io.Copy(w, io.LimitReader(read.File, length)) // sendfile
}

// maxBlockRead is the longest range lent at once.
const maxBlockRead = 256 << 20

// sendAnnouncement is one exchange of words.
func (n *Node) sendAnnouncement(ctx context.Context, at Peer, plan string, say announcement) (announcement, error) {
	body, err := json.Marshal(say)
	if err != nil {
		return announcement{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(at.URL, "/")+announcePath+"?plan="+url.QueryEscape(plan), bytes.NewReader(body))
	if err != nil {
		return announcement{}, err
	}
	req.Header.Set("Authorization", "Bearer "+n.o.Token)
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
	return out, nil
}

// requestBlock asks a node for a block.
func (n *Node) requestBlock(ctx context.Context, at Peer, plan string, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	q := url.Values{"plan": {plan}, "file": {b.File.Name}, "offset": {fmt.Sprint(b.Offset)}, "length": {fmt.Sprint(b.Length)}, "wait": {fmt.Sprint(wait.Milliseconds())}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(at.URL, "/")+blocksPath+"?"+q.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Authorization", "Bearer "+n.o.Token)
	r, err := n.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	var sum uint64
	if _, serr := fmt.Sscanf(r.Header.Get(checksumHeader), "%x", &sum); r.StatusCode != http.StatusOK || serr != nil || r.ContentLength != b.Length {
		httpsource.Drain(r)
		if r.StatusCode == http.StatusConflict {
			return nil, 0, errNotFetching
		}
		return nil, 0, fmt.Errorf("status %d, %d bytes", r.StatusCode, r.ContentLength)
	}
	return r.Body, sum, nil
}
