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
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/httpsource"
)

// Node is another node.
type Node struct {
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
	Nodes func() []Node
	// Block is the loader's, 8 MiB when 0. Nodes with other blocks are strangers.
	Block int64
	// Tell is how often nodes tell each other what they have; 250 ms when 0.
	Tell time.Duration
	// Patience is how long a block is waited for at a node that is at it and
	// answers; 60 s when 0. The source is the same for both: asking it too would
	// make it slower for all.
	Patience time.Duration
	// Silence is how long a node may say nothing before it is left out; 10 s when
	// 0. One whose port is closed is left out at once.
	Silence time.Duration
	// Folders of this machine that are lent as they are; nil lends none.
	Folders *Folders
	// Log may be nil.
	Log *slog.Logger
}

// Lender is what of a loader is lent.
type Lender interface {
	Lend(ctx context.Context, plan, name string, off, n int64) (*loader.Loan, error)
	// Holds reports whether a plan is published here.
	Holds(plan string) bool
}

// Circle is this node among the others: a loader's Neighbours, and the server
// that the others ask. Its methods may be called concurrently.
type Circle struct {
	o     Options
	http  *http.Client
	token [sha256.Size]byte

	mu        sync.Mutex // guards the fields below
	companies map[string]*company
}

var _ loader.Neighbours = (*Circle)(nil)

// New returns a circle. It starts nothing.
func New(o Options) *Circle {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Block == 0 {
		o.Block = 8 << 20
	}
	if o.Tell == 0 {
		o.Tell = 250 * time.Millisecond
	}
	if o.Silence == 0 {
		o.Silence = 10 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	c := &Circle{o: o, http: httpsource.Client(httpsource.Options{}), token: sha256.Sum256([]byte(o.Token)), companies: make(map[string]*company)}
	// A block is waited for at its lender, before the head of the answer.
	c.http.Transport.(*http.Transport).ResponseHeaderTimeout = 0
	return c
}

// Close lets idle connections go. All companies have been left.
func (c *Circle) Close() { c.http.CloseIdleConnections() }

// Meet tells all nodes that are known of a staging, and hears what they have.
// It waits for the quick ones.
func (c *Circle) Meet(ctx context.Context, key string, files []source.File) loader.Company {
	var nodes []Node
	for _, n := range c.o.Nodes() {
		if n.ID != c.o.ID && n.URL != "" && n.URL != c.o.URL {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 && c.o.URL == "" {
		return nil
	}
	life, cancel := context.WithCancelCause(ctx)
	m := newCompany(c, key, files, cancel)
	c.mu.Lock()
	if c.companies[key] != nil {
		// Two stagings of one plan, under two names: the first has the company.
		c.mu.Unlock()
		cancel(nil)
		return nil
	}
	c.companies[key] = m
	c.mu.Unlock()
	select {
	case <-m.tell(life):
	case <-time.After(meetWait):
	case <-life.Done():
	}
	m.wg.Go(func() { m.run(life) })
	return m
}

// meetWait is how long the start of a staging waits for the others' answers.
const meetWait = 250 * time.Millisecond

func (c *Circle) company(key string) *company {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.companies[key]
}

func (c *Circle) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.companies, key)
}

// The states of a plan at a node.
const (
	stateNone      = "none"
	stateArriving  = "arriving"
	statePublished = "published"
)

// word is what one node tells another of a plan, and the answer to it.
type word struct {
	ID    string `json:"id"`
	URL   string `json:"url,omitempty"`
	State string `json:"state"`
	Block int64  `json:"block,omitempty"`
	Bits  []byte `json:"bits,omitempty"` // what it has or is at, a bit per block, low bits first
}

const (
	maxWord  = 4 << 20
	sumField = "X-Thaw-Sum"
	meetPath = "/peers/meet"
	lendPath = "/peers/blocks"
)

// Handler is what other nodes ask of this one.
func (c *Circle) Handler(lender Lender) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+meetPath, func(w http.ResponseWriter, r *http.Request) { c.met(lender, w, r) })
	mux.HandleFunc("GET "+lendPath, func(w http.ResponseWriter, r *http.Request) { c.lend(lender, w, r) })
	mux.HandleFunc("GET "+listPath, c.o.Folders.list)
	mux.HandleFunc("GET "+filePath, c.o.Folders.read)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum := sha256.Sum256([]byte(secret))
		if subtle.ConstantTimeCompare(sum[:], c.token[:]) != 1 || !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "nodes show the join token", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Serve answers other nodes on l until ctx ends; then what is being lent may
// end within grace.
func (c *Circle) Serve(ctx context.Context, l net.Listener, lender Lender) error {
	srv := &http.Server{Handler: c.Handler(lender), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(c.o.Log.Handler(), slog.LevelDebug)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
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

const grace = 2 * time.Second

// met hears what another node has, and answers with what is here.
func (c *Circle) met(lender Lender, w http.ResponseWriter, r *http.Request) {
	plan := r.URL.Query().Get("plan")
	var in word
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWord))
	if err != nil || json.Unmarshal(raw, &in) != nil || plan == "" || in.ID == "" {
		http.Error(w, "not a word of a node", http.StatusBadRequest)
		return
	}
	out := word{ID: c.o.ID, State: stateNone}
	if m := c.company(plan); m != nil {
		if in.ID != c.o.ID {
			m.hear(Node{ID: in.ID, URL: in.URL}, in)
		}
		out.State, out.Block, out.Bits = stateArriving, c.o.Block, m.mine()
	} else if lender.Holds(plan) {
		out.State = statePublished
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// lend gives a block. One that is still on its way here is waited for, for as
// long as the other node says it will.
func (c *Circle) lend(lender Lender, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var off, n, wait int64
	if _, err := fmt.Sscan(q.Get("offset")+" "+q.Get("length")+" "+q.Get("wait"), &off, &n, &wait); err != nil || n <= 0 || n > maxLoan || wait < 0 {
		http.Error(w, "offset, length and wait are numbers", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(time.Duration(wait)*time.Millisecond, c.o.Patience))
	defer cancel()
	plan, name := q.Get("plan"), q.Get("file")
	if m := c.company(plan); m != nil && !m.asked(name, off) {
		// Two nodes that each wait for the other to bring it would wait long.
		http.Error(w, "another node is at it", http.StatusConflict)
		return
	}
	loan, err := lender.Lend(ctx, plan, name, off, n)
	switch {
	case source.KindOf(err) == source.Missing:
		http.Error(w, "neither here nor on its way", http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, "not here in time", http.StatusServiceUnavailable)
		return
	}
	defer loan.Close()
	if _, err := loan.File.Seek(loan.Offset, io.SeekStart); err != nil {
		http.Error(w, "cannot be read", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", fmt.Sprint(n))
	w.Header().Set(sumField, fmt.Sprintf("%016x", loan.Sum))
	// A reader that takes nothing holds a lease: not for ever.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(c.o.Patience + time.Minute))
	_, _ = io.Copy(w, io.LimitReader(loan.File, n)) // sendfile
}

// maxLoan is the longest range lent at once.
const maxLoan = 256 << 20

// send is one exchange of words.
func (c *Circle) send(ctx context.Context, at Node, plan string, say word) (word, error) {
	body, err := json.Marshal(say)
	if err != nil {
		return word{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(at.URL, "/")+meetPath+"?plan="+url.QueryEscape(plan), bytes.NewReader(body))
	if err != nil {
		return word{}, err
	}
	req.Header.Set("Authorization", "Bearer "+c.o.Token)
	req.Header.Set("Content-Type", "application/json")
	r, err := c.http.Do(req)
	if err != nil {
		return word{}, err
	}
	defer httpsource.Drain(r)
	if r.StatusCode != http.StatusOK {
		return word{}, fmt.Errorf("status %d", r.StatusCode)
	}
	var out word
	if err := json.NewDecoder(io.LimitReader(r.Body, maxWord)).Decode(&out); err != nil {
		return word{}, err
	}
	return out, nil
}

// borrow asks a node for a block.
func (c *Circle) borrow(ctx context.Context, at Node, plan string, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	q := url.Values{"plan": {plan}, "file": {b.File.Name}, "offset": {fmt.Sprint(b.Offset)}, "length": {fmt.Sprint(b.Length)}, "wait": {fmt.Sprint(wait.Milliseconds())}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(at.URL, "/")+lendPath+"?"+q.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.o.Token)
	r, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	var sum uint64
	if _, serr := fmt.Sscanf(r.Header.Get(sumField), "%x", &sum); r.StatusCode != http.StatusOK || serr != nil || r.ContentLength != b.Length {
		httpsource.Drain(r)
		if r.StatusCode == http.StatusConflict {
			return nil, 0, errNotAtIt
		}
		return nil, 0, fmt.Errorf("status %d, %d bytes", r.StatusCode, r.ContentLength)
	}
	return r.Body, sum, nil
}
