package p2p_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = 256 << 10

// origin is a source with one rate for all its readers.
type origin struct {
	files map[string][]byte
	sums  map[string]string // sha256 that the source keeps, by name
	rate  int64             // bytes a second; 0 for any

	mu     sync.Mutex
	next   time.Time
	egress atomic.Int64
}

func (o *origin) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	var p source.Plan
	for _, name := range slices.Sorted(maps.Keys(o.files)) {
		p.Files = append(p.Files, source.File{Name: name, Size: int64(len(o.files[name])), Version: "1", SHA256: o.sums[name]})
	}
	return p, ctx.Err()
}

// limit waits until n bytes may go.
func (o *origin) limit(ctx context.Context, n int64) error {
	if o.rate == 0 {
		return nil
	}
	o.mu.Lock()
	now := time.Now()
	if o.next.Before(now) {
		o.next = now
	}
	at := o.next
	o.next = o.next.Add(time.Duration(float64(n) / float64(o.rate) * float64(time.Second)))
	o.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type paced struct {
	io.Reader
	o   *origin
	ctx context.Context
}

func (p paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b[:min(len(b), 64<<10)])
	p.o.egress.Add(int64(n))
	if perr := p.o.limit(p.ctx, int64(n)); perr != nil {
		return 0, perr
	}
	return n, err
}

func (paced) Close() error { return nil }

func (o *origin) Read(ctx context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	return paced{bytes.NewReader(o.files[f.Name][offset : offset+length]), o, ctx}, nil
}

// weights is a sound file of safetensors.
func weights(n int) []byte {
	head := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	for i := range n {
		b = append(b, byte(i*7)^byte(i>>11))
	}
	return b
}

func model(n int) map[string][]byte {
	return map[string][]byte{"config.json": []byte("{}"), "model.safetensors": weights(n)}
}

// node is one node with a loader of its own.
type node struct {
	id, url string
	node    *p2p.Node
	loader  *loader.Loader
	stop    func()
	corrupt func(b []byte) // changes the bytes it lends; nil for none; set while nothing is staged
	mute    atomic.Bool    // it answers nothing
	served  atomic.Int64
	asked   func(r *http.Request) // called for each block; nil for none; set while nothing is staged
}

type cluster struct {
	mu    sync.Mutex
	nodes []p2p.Peer
}

func (c *cluster) peers() []p2p.Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]p2p.Peer(nil), c.nodes...)
}

func (c *cluster) join(t *testing.T, id string, from loader.Source, change func(*p2p.Options)) *node {
	t.Helper()
	n := &node{id: id}
	st, err := store.Open(store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.url = "http://" + l.Addr().String()
	o := p2p.Options{ID: id, URL: n.url, Nodes: c.peers, Block: block, AnnounceEvery: 50 * time.Millisecond, BlockTimeout: time.Minute}
	if change != nil {
		change(&o)
	}
	n.node = p2p.New(o)
	n.loader = loader.New(loader.Options{Store: st, Block: block, Parallel: 4, Peers: n.node, Sources: map[string]loader.Source{"https": from, "peer": n.node.Source()},
		Retry: loader.Retry{Base: time.Millisecond, Max: 10 * time.Millisecond}})
	inner := n.node.Handler(n.loader)
	closed := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.mute.Load() {
			select {
			case <-r.Context().Done():
			case <-closed:
			}
			return
		}
		if strings.HasSuffix(r.URL.Path, "/blocks") {
			n.served.Add(1)
			if n.asked != nil {
				n.asked(r)
			}
			if n.corrupt != nil {
				recorder := httptest.NewRecorder()
				inner.ServeHTTP(recorder, r)
				if recorder.Code == http.StatusOK {
					// Other bytes, and a checksum that fits them.
					b := recorder.Body.Bytes()
					n.corrupt(b)
					var sum store.Sum
					sum.Write(b)
					w.Header().Set("X-Thaw-Sum", fmt.Sprintf("%016x", sum.Sum64()))
					w.Header().Set("Content-Length", fmt.Sprint(len(b)))
					_, _ = w.Write(b)
					return
				}
			}
		}
		inner.ServeHTTP(w, r)
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(l) }()
	n.stop = sync.OnceFunc(func() {
		n.loader.Close()
		close(closed)
		srv.Close()
		<-ended
		n.node.Close()
	})
	t.Cleanup(n.stop)
	c.mu.Lock()
	c.nodes = append(c.nodes, p2p.Peer{ID: id, URL: n.url})
	c.mu.Unlock()
	return n
}

func (n *node) stage(ctx context.Context) (*loader.Checkpoint, error) {
	s, err := n.loader.Stage(ctx, "https://models.example.org/m", loader.StageOptions{})
	if err != nil {
		return nil, err
	}
	defer s.Release()
	return s.Wait(ctx)
}

func check(t *testing.T, c *loader.Checkpoint, want map[string][]byte) {
	t.Helper()
	defer c.Lease.Release()
	for name, b := range want {
		got, err := os.ReadFile(filepath.Join(c.Path, name))
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// Cold nodes that start together fetch a model once between them. The bench measures
// the time: here eight of them share the machine. A node that gets no processor time while
// the others announce fetches what they fetch too, so the best of five rounds counts.
func TestColdNodesShareDownload(t *testing.T) {
	const rounds, allowed = 5, 1.1
	from := &origin{files: model(8 << 20), rate: 8 << 20}
	shareDownload(t, from, 1)
	whole := from.egress.Swap(0)
	var ratios []float64
	for range rounds {
		shareDownload(t, from, 8)
		ratios = append(ratios, float64(from.egress.Swap(0))/float64(whole))
		t.Logf("egress %.3f of one model", ratios[len(ratios)-1])
		if ratios[len(ratios)-1] <= allowed {
			return
		}
	}
	t.Errorf("the source gave %.2f models, at most %v is right", ratios, allowed)
}

// shareDownload stages a model on new nodes at once.
func shareDownload(t *testing.T, from *origin, nodes int) {
	var c cluster
	var all []*node
	for i := range nodes {
		all = append(all, c.join(t, fmt.Sprintf("node-%d", i), from, nil))
	}
	var wg sync.WaitGroup
	for _, n := range all {
		wg.Go(func() {
			cp, err := n.stage(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			check(t, cp, from.files)
		})
	}
	wg.Wait()
	for _, n := range all {
		n.stop()
	}
}

func sumOf(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// A node that has the model serves all of it.
func TestPublishedIsShared(t *testing.T) {
	from := &origin{files: model(4 << 20)}
	var c cluster
	first := c.join(t, "first", from, nil)
	cp, err := first.stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, cp, from.files)
	before := from.egress.Load()
	cp, err = c.join(t, "second", from, nil).stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, cp, from.files)
	if n := from.egress.Load() - before; n != 0 {
		t.Errorf("the source gave %d bytes more", n)
	}
	if first.served.Load() == 0 {
		t.Error("nothing was lent")
	}
}

// A node that sends other bytes is detected by the file's digest, and its blocks are
// fetched again from the source.
func TestCorruptPeer(t *testing.T) {
	files := model(4 << 20)
	from := &origin{files: files, sums: map[string]string{"model.safetensors": sumOf(files["model.safetensors"]), "config.json": sumOf(files["config.json"])}}
	var c cluster
	corruptNode := c.join(t, "liar", from, nil)
	cp, err := corruptNode.stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cp.Lease.Release()
	corruptNode.corrupt = corruptLastByte
	cp, err = c.join(t, "second", from, nil).stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, cp, files)
	if corruptNode.served.Load() == 0 {
		t.Error("the liar was not asked")
	}
}

// corruptLastByte leaves a file valid in its form: only its digest shows the change.
func corruptLastByte(b []byte) { b[len(b)-1] ^= 1 }

// corruptAll leaves no valid beginning of a file.
func corruptAll(b []byte) { copy(b, bytes.Repeat([]byte{0x5a}, len(b))) }

// A node that sent other bytes is asked for nothing more in this staging: here for the
// rest of the second file, once the first has failed its digest, or the check of its
// first block.
func TestCorruptPeerIsExcluded(t *testing.T) {
	t.Run("digest", func(t *testing.T) { testCorruptPeerIsExcluded(t, corruptLastByte) })
	t.Run("first block", func(t *testing.T) { testCorruptPeerIsExcluded(t, corruptAll) })
}

func testCorruptPeerIsExcluded(t *testing.T, corrupt func([]byte)) {
	const lanes = 8 // blocks that a loader requests from other nodes at once
	files := map[string][]byte{"a.safetensors": weights(block / 2), "b.safetensors": weights(4 * lanes * block)}
	from := &origin{files: files, sums: map[string]string{}}
	for name, b := range files {
		from.sums[name] = sumOf(b)
	}
	var c cluster
	liar := c.join(t, "liar", from, nil)
	cp, err := liar.stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cp.Lease.Release()
	liar.corrupt = corrupt
	var blocksOfB atomic.Int64
	allWait := make(chan struct{}) // closed when all lanes but one wait for the second file
	liar.asked = func(r *http.Request) {
		if r.URL.Query().Get("file") == "a.safetensors" {
			<-allWait
			return
		}
		if blocksOfB.Add(1) == lanes-1 {
			close(allWait)
		}
		<-r.Context().Done()
	}
	cp, err = c.join(t, "second", from, func(o *p2p.Options) { o.BlockTimeout = 3 * time.Second }).stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, cp, files)
	if n := blocksOfB.Load(); n > lanes {
		t.Errorf("the liar was asked %d times, want %d at most", n, lanes)
	}
}

// A node that sent other bytes of one file is not believed for another of which the source
// keeps no digest: that is fetched again too.
func TestCorruptPeerOfUndigestedFile(t *testing.T) {
	const blocks = 6
	files := map[string][]byte{"a.safetensors": weights(block / 2), "b.safetensors": weights(blocks*block - 1000)}
	from := &origin{files: files, sums: map[string]string{"a.safetensors": sumOf(files["a.safetensors"])}}
	var c cluster
	liar := c.join(t, "liar", from, nil)
	cp, err := liar.stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cp.Lease.Release()
	liar.corrupt = corruptLastByte
	var blocksOfB atomic.Int64
	most := make(chan struct{}) // closed when most blocks of b were requested
	liar.asked = func(r *http.Request) {
		if r.URL.Query().Get("file") == "a.safetensors" {
			<-most
		} else if blocksOfB.Add(1) == blocks {
			close(most)
		}
	}
	cp, err = c.join(t, "second", from, nil).stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, cp, files)
	if n := blocksOfB.Load(); n != blocks {
		t.Errorf("the liar was asked for %d blocks, want %d", n, blocks)
	}
}

// A node that falls silent in the middle is left out after PeerTimeout, however long a block
// of a node that answers may take.
func TestSilentPeer(t *testing.T) {
	for _, blockTimeout := range []time.Duration{time.Second, time.Hour} {
		t.Run(blockTimeout.String(), func(t *testing.T) { testSilentPeer(t, blockTimeout) })
	}
}

func testSilentPeer(t *testing.T, blockTimeout time.Duration) {
	from := &origin{files: model(8 << 20), rate: 8 << 20}
	var c cluster
	first := c.join(t, "first", from, func(o *p2p.Options) { o.BlockTimeout, o.PeerTimeout = blockTimeout, time.Second })
	second := c.join(t, "second", from, func(o *p2p.Options) { o.BlockTimeout, o.PeerTimeout = blockTimeout, time.Second })
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if cp, err := second.stage(ctx); err == nil {
			cp.Lease.Release()
		}
	}()
	s, err := first.loader.Stage(t.Context(), "https://models.example.org/m", loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	events, stop := s.Events()
	for p := range events {
		if p.Total > 0 && p.Done > p.Total/8 {
			break
		}
	}
	stop()
	second.mute.Store(true)
	cancel()
	patient, giveUp := context.WithTimeout(t.Context(), testkit.Timeout)
	defer giveUp()
	cp, err := s.Wait(patient)
	if err != nil {
		t.Fatalf("the other node fell silent: %v", err)
	}
	check(t, cp, from.files)
	<-gone
}

// A node with certificates neither asks nor answers over plain HTTP: it fetches from the
// source, and what it has is not named.
func TestPlainHTTPIsRefused(t *testing.T) {
	from := &origin{files: model(1 << 20)}
	var c cluster
	plain := c.join(t, "plain", from, nil)
	cp, err := plain.stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cp.Lease.Release()
	asked := atomic.Int64{}
	plain.asked = func(*http.Request) { asked.Add(1) }
	secure := c.join(t, "secure", from, func(o *p2p.Options) {
		o.TLS = &p2p.TLS{Connect: func(_ context.Context, conn net.Conn) (*tls.Conn, error) {
			t.Error("a connection to a plain node")
			return tls.Client(conn, &tls.Config{}), nil
		}}
	})
	before := from.egress.Load()
	if cp, err = secure.stage(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(t, cp, from.files)
	if from.egress.Load() == before || asked.Load() != 0 {
		t.Errorf("%d bytes of the source, %d requests to the plain node", from.egress.Load()-before, asked.Load())
	}
	for _, at := range []string{"/peers/meet?plan=x", "/peers/blocks?plan=x&file=config.json&offset=0&length=2&wait=1", "/peers/folder?folder=/", "/"} {
		r, err := http.Get(secure.url + at)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", at, r.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// Invalid requests are refused.
func TestBadRequests(t *testing.T) {
	from := &origin{files: model(1 << 20)}
	var c cluster
	first := c.join(t, "first", from, nil)
	for at, want := range map[string]int{
		"/peers/blocks?plan=x&file=config.json&offset=0&length=2&wait=1":            404,
		"/peers/blocks?plan=x&file=config.json&offset=0&length=0&wait=1":            400,
		"/peers/blocks?plan=x&file=config.json&offset=a&length=2&wait=1":            400,
		"/peers/blocks?plan=x&file=config.json&offset=0&length=999999999999&wait=1": 400,
		"/peers/blocks?plan=x&file=../../../etc/passwd&offset=0&length=2&wait=1":    404,
		"/peers/blocks?plan=../../x&file=config.json&offset=-1&length=2&wait=1":     404,
		"/peers/blocks?plan=x&file=config.json&offset=0&length=2&wait=-1":           400,
		"/peers/meet?plan=x": 405,
		"/other":             404,
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, first.url+at, nil)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: %d, want %d", at, r.StatusCode, want)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, first.url+"/peers/meet?plan=x", strings.NewReader("{"))
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusBadRequest {
		t.Errorf("half a word: %d", r.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Serve answers until it is told to end.
func TestServe(t *testing.T) {
	from := &origin{files: model(1 << 20)}
	var c cluster
	n := c.join(t, "first", from, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.node.Serve(ctx, l, n.loader) }()
	r, err := http.Get("http://" + l.Addr().String() + "/peers/meet")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// awaitsBlocks is a BlockServer whose blocks never arrive.
type awaitsBlocks struct{ noCheckpoints }

func (awaitsBlocks) ReadBlock(ctx context.Context, _, _ string, _, _ int64) (*loader.BlockRead, error) {
	<-ctx.Done()
	return nil, &source.Error{Kind: source.Broken, Err: ctx.Err()}
}

// A node waits for a block that another asks for at most BlockTimeout, however long that one
// would wait.
func TestBlockTimeout(t *testing.T) {
	node := p2p.New(p2p.Options{ID: "first", BlockTimeout: 50 * time.Millisecond, Nodes: func() []p2p.Peer { return nil }})
	defer node.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	node.Handler(awaitsBlocks{}).ServeHTTP(w,
		httptest.NewRequestWithContext(ctx, "GET", "/peers/blocks?plan=x&file=a&offset=0&length=2&wait=3600000", nil))
	if w.Code != http.StatusServiceUnavailable || ctx.Err() != nil {
		t.Errorf("%d %s, %v", w.Code, w.Body, ctx.Err())
	}
}

// A staging waits only a moment for the first answers: a node that takes its time does not
// hold it up.
func TestJoinWaitsBriefly(t *testing.T) {
	asked, end := make(chan struct{}, 100), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(end)
	node := p2p.New(p2p.Options{ID: "first", PeerTimeout: 20 * time.Second, Nodes: func() []p2p.Peer { return []p2p.Peer{{ID: "slow", URL: srv.URL}} }})
	defer node.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	swarm := node.Join(ctx, "plan", []source.File{{Name: "a", Size: 1}})
	if swarm == nil {
		t.Fatal("no swarm with another node")
	}
	defer swarm.Leave()
	if ctx.Err() != nil || len(asked) == 0 {
		t.Errorf("joined with %d questions: %v", len(asked), ctx.Err())
	}
	if b := (loader.Block{File: source.File{Name: "a", Size: 1}, Length: 1}); !swarm.Owns(b) {
		t.Error("a block is left to a node that has not answered")
	}
}
