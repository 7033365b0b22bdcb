package p2p

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
)

// swarm is the nodes that stage one plan, as this node knows them.
type swarm struct {
	node   *Node
	key    string
	files  map[string]blockNumbers
	blocks int
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	members    map[string]*member
	bitmap     bitmap          // blocks this node has or fetches
	sentBy     map[int]string  // node that sent a block
	excluded   map[string]bool // nodes that sent other bytes than the source's, by ID
	waits      map[int]int     // reads in flight by block
	announcing map[string]bool // nodes with an announcement in flight, by URL
	failed     map[string]bool // nodes whose failure was logged, by URL
	view       int             // counts changes of ownership
	owners     []ownership
}

// member is another node of the swarm.
type member struct {
	peer       Peer
	blocks     bitmap
	all        bool // it has every block
	lastAnswer time.Time
	refused    int  // refused connections in a row
	gone       bool // it stopped answering
	excluded   bool // it sent other bytes than the source's
	reads      int  // reads in flight
	cancel     context.CancelFunc
	ctx        context.Context // ends when the node is given up
}

// blockNumbers are the numbers of a file's blocks: from first to before end.
type blockNumbers struct{ first, end int }

// ownership is a cached owner, valid for one view.
type ownership struct {
	view  int
	owner string
}

type bitmap []byte

func (b bitmap) has(i int) bool { return i>>3 < len(b) && b[i>>3]&(1<<(i&7)) != 0 }
func (b bitmap) set(i int)      { b[i>>3] |= 1 << (i & 7) }

func newSwarm(n *Node, key string, files []source.File, cancel context.CancelCauseFunc) *swarm {
	s := &swarm{
		node: n, key: key, files: make(map[string]blockNumbers), cancel: cancel, members: make(map[string]*member),
		sentBy: make(map[int]string), excluded: make(map[string]bool), waits: make(map[int]int),
		announcing: make(map[string]bool), failed: make(map[string]bool), view: 1,
	}
	// Sorted by name: block numbers must be equal on all
	// nodes.
	files = slices.SortedFunc(slices.Values(files), func(a, b source.File) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range files {
		first := s.blocks
		s.blocks += int((f.Size + n.o.Block - 1) / n.o.Block)
		s.files[f.Name] = blockNumbers{first, s.blocks}
	}
	s.bitmap = make(bitmap, (s.blocks+7)/8)
	s.owners = make([]ownership, s.blocks)
	return s
}

// number returns the block number of a file's block; -1 if it is not of the plan.
func (s *swarm) number(name string, index int) int {
	numbers := s.files[name]
	if i := numbers.first + index; index >= 0 && i < numbers.end {
		return i
	}
	return -1
}

func (m *member) usable() bool            { return !m.excluded && !m.gone && m.peer.URL != "" }
func (m *member) hasOrFetches(i int) bool { return m.all || m.blocks.has(i) }

// Owns reports whether this node is to fetch a block from the source: no other node
// has or fetches it, and this node is its owner.
func (s *swarm) Owns(b loader.Block) bool {
	i := s.number(b.File.Name, b.Index)
	if i < 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bitmap.has(i) || s.mustFetchLocked(i)
}

// mustFetchLocked reports whether no other node has or fetches a block and this node is its
// owner; the caller holds mu.
func (s *swarm) mustFetchLocked(i int) bool {
	for _, m := range s.members {
		if m.usable() && m.hasOrFetches(i) {
			return false
		}
	}
	return s.owner(i) == s.node.o.ID
}

// Claim marks a block as being fetched by this node; the next announcement includes
// it.
func (s *swarm) Claim(b loader.Block) {
	if i := s.number(b.File.Name, b.Index); i >= 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bitmap.set(i)
	}
}

// owner returns the owner of a block by rendezvous hashing; the caller holds mu.
func (s *swarm) owner(i int) string {
	if o := s.owners[i]; o.view == s.view {
		return o.owner
	}
	best, highest := s.node.o.ID, rendezvousWeight(s.node.o.ID, s.key, i)
	for id, p := range s.members {
		// A node with every block fetches nothing.
		if !p.usable() || p.all {
			continue
		}
		if w := rendezvousWeight(id, s.key, i); w > highest {
			best, highest = id, w
		}
	}
	s.owners[i] = ownership{s.view, best}
	return best
}

func rendezvousWeight(id, key string, i int) uint64 {
	return xxh3.HashStringSeed(id+"\x00"+key, uint64(i))
}

// mayServe reports whether another node may wait here for a block: this node has it,
// fetches it, or owns it. A node that itself waits for a third refuses, so that no two
// nodes wait for each other.
func (s *swarm) mayServe(name string, off int64) bool {
	i := s.number(name, int(off/s.node.o.Block))
	if i < 0 {
		return true // the loader refuses it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bitmap.has(i) || s.mustFetchLocked(i) && s.waits[i] == 0
}

// ownBitmap returns a copy of this node's blocks.
func (s *swarm) ownBitmap() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bitmap)
}

func (s *swarm) receive(n Peer, w announcement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.members[n.ID]
	stages := w.State == stateArriving && w.Block == s.node.o.Block && len(w.Bits) == len(s.bitmap)
	if !stages && w.State != statePublished {
		if p != nil {
			s.cancelReads(p)
			delete(s.members, n.ID)
		}
		return
	}
	if p == nil {
		p = &member{peer: n, excluded: s.excluded[n.ID], gone: true}
		s.members[n.ID] = p
	}
	if n.URL != "" && p.peer.URL != n.URL {
		p.peer.URL = n.URL
		s.view++
	}
	if p.gone {
		p.gone = false
		p.ctx, p.cancel = context.WithCancel(context.Background()) // cancelReads and Leave end it
		s.view++
	}
	if all := w.State == statePublished; all != p.all {
		p.all = all
		s.view++
	}
	p.lastAnswer, p.refused, p.blocks = time.Now(), 0, w.Bits
}

// noAnswer notes a missing answer. A node that refuses the connection twice is gone; a
// slow one has until PeerTimeout.
func (s *swarm) noAnswer(id string, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.members[id]
	if p == nil || p.gone {
		return
	}
	if p.refused++; !refused {
		p.refused = 0
	}
	if p.refused >= 2 || time.Since(p.lastAnswer) > s.node.o.PeerTimeout {
		s.node.o.Log.Info("a node does not answer, its blocks get other owners", "node", id)
		p.gone = true
		s.cancelReads(p)
	}
}

// cancelReads ends the reads from a node; the caller holds mu.
func (s *swarm) cancelReads(p *member) {
	p.cancel()
	s.view++
}

// announceLoop announces until the staging ends.
func (s *swarm) announceLoop(ctx context.Context) {
	t := time.NewTicker(s.node.o.AnnounceEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.announce(ctx)
		}
	}
}

// announce sends every known node what is here and takes in its answer. A node with an
// announcement in flight is skipped. The returned channel is closed when all have
// answered or failed.
func (s *swarm) announce(ctx context.Context) <-chan struct{} {
	nodes := make(map[string]Peer) // by URL
	for _, n := range s.node.o.Nodes() {
		if n.ID != s.node.o.ID && n.URL != "" && n.URL != s.node.o.URL {
			nodes[n.URL] = n
		}
	}
	s.mu.Lock()
	for id, p := range s.members {
		if p.peer.URL != "" {
			nodes[p.peer.URL] = Peer{ID: id, URL: p.peer.URL}
		}
	}
	for at := range nodes {
		if s.announcing[at] {
			delete(nodes, at)
		}
		s.announcing[at] = true
	}
	s.mu.Unlock()
	message := announcement{ID: s.node.o.ID, URL: s.node.o.URL, State: stateArriving, Block: s.node.o.Block, Bits: s.ownBitmap()}
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.node.o.PeerTimeout)
			defer cancel()
			w, err := s.node.sendAnnouncement(ctx, n, s.key, message)
			switch {
			case err != nil && n.ID != "":
				s.noAnswer(n.ID, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
			case err == nil && w.ID != "" && w.ID != s.node.o.ID:
				s.receive(Peer{ID: w.ID, URL: n.URL}, w)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.announcing, n.URL)
			if err != nil && ctx.Err() == nil && !s.failed[n.URL] {
				s.failed[n.URL] = true
				s.node.o.Log.Warn("a node is not asked for blocks", "node", n.ID, "url", n.URL, "error", err)
			}
		})
	}
	done := make(chan struct{})
	s.wg.Go(func() {
		defer close(done)
		all.Wait()
	})
	return done
}

// maxPeersAsked is how many nodes are asked for a block before the source is.
const maxPeersAsked = 3

func (s *swarm) Fetch(ctx context.Context, b loader.Block) (io.ReadCloser, uint64, bool) {
	i := s.number(b.File.Name, b.Index)
	if i < 0 {
		return nil, 0, false
	}
	s.mu.Lock()
	s.waits[i]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waits[i]--; s.waits[i] == 0 {
			delete(s.waits, i)
		}
	}()
	tried := make(map[string]bool)
	until := time.Now().Add(s.node.o.BlockTimeout)
	for len(tried) < maxPeersAsked {
		p, node := s.choosePeer(i, tried)
		if p == nil {
			break
		}
		body, sum, err := s.fetchFrom(ctx, p, node, b, time.Until(until))
		if err == nil {
			return body, sum, true
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errNotFetching) && time.Until(until) > s.node.o.AnnounceEvery {
			// Its view of the swarm differs from this node's, for a moment.
			backoff.Sleep(ctx, s.node.o.AnnounceEvery)
			continue
		}
		tried[node.ID] = true
		s.node.o.Log.Debug("a node does not send a block", "node", node.ID, "file", b.File.Name, "block", b.Index, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bitmap.set(i)
	return nil, 0, false
}

// choosePeer returns the node to read a block from: of those that have or fetch it the
// one with the fewest reads, else its owner. Nil if that is this node.
func (s *swarm) choosePeer(i int, tried map[string]bool) (*member, Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *member
	var node Peer
	count := 0
	for id, p := range s.members {
		if !p.usable() || tried[id] || !p.hasOrFetches(i) {
			continue
		}
		switch {
		case best == nil || p.reads < best.reads:
			best, count = p, 1
		case p.reads == best.reads:
			if count++; rand.IntN(count) == 0 {
				best = p
			}
		}
	}
	if best == nil {
		if p := s.members[s.owner(i)]; p != nil && p.usable() && !tried[p.peer.ID] {
			best = p
		}
	}
	if best == nil {
		return nil, node
	}
	best.reads++
	return best, best.peer
}

var (
	errGone        = errors.New("the node is gone")
	errNotFetching = errors.New("another node fetches it")
)

// fetchFrom reads from one node, until it answers, is given up, or wait ends.
func (s *swarm) fetchFrom(ctx context.Context, p *member, node Peer, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	s.mu.Lock()
	nodeCtx := p.ctx
	s.mu.Unlock()
	done := func() { s.mu.Lock(); p.reads--; s.mu.Unlock() }
	if wait <= 0 || nodeCtx.Err() != nil {
		done()
		return nil, 0, errGone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(nodeCtx, func() { cancel(errGone) })
	timeout := time.AfterFunc(wait+time.Second, func() { cancel(context.DeadlineExceeded) })
	body, sum, err := s.node.requestBlock(ctx, node, s.key, b, wait)
	timeout.Stop()
	if err != nil {
		stop()
		cancel(nil)
		done()
		return nil, 0, err
	}
	end := sync.OnceFunc(func() { stop(); cancel(nil); done() })
	return &trackedBody{ReadCloser: body, m: s, i: s.number(b.File.Name, b.Index), p: p, left: b.Length, end: end}, sum, nil
}

// trackedBody marks the block as present when all of it was read.
type trackedBody struct {
	io.ReadCloser
	m    *swarm
	i    int
	p    *member
	left int64
	end  func() // when it is closed
}

func (b *trackedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

func (b *trackedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left == 0 && n > 0 {
		b.m.mu.Lock()
		defer b.m.mu.Unlock()
		b.m.bitmap.set(b.i)
		if b.p.excluded {
			return 0, errGone
		}
		b.m.sentBy[b.i] = b.p.peer.ID
	}
	return n, err
}

// Exclude excludes the nodes that sent blocks of a file, and returns the blocks that they
// sent of all files: these are fetched again from the source, because each block stays
// marked as this node's.
func (s *swarm) Exclude(file string) (sent map[string][]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make(map[string]bool)
	for i := s.files[file].first; i < s.files[file].end; i++ {
		sender := s.sentBy[i]
		if sender == "" || s.excluded[sender] {
			continue
		}
		s.excluded[sender], now[sender] = true, true
		s.node.o.Log.Warn("a node sent bytes that are not the source's; it is not asked again", "node", sender, "file", file)
		if p := s.members[sender]; p != nil {
			p.excluded = true
			s.cancelReads(p)
		}
	}
	sent = make(map[string][]int)
	for name, numbers := range s.files {
		for i := numbers.first; i < numbers.end; i++ {
			if now[s.sentBy[i]] {
				sent[name] = append(sent[name], i-numbers.first)
				delete(s.sentBy, i)
			}
		}
	}
	return sent
}

// Leave ends the swarm. The others learn it at their next announcement.
func (s *swarm) Leave() {
	s.cancel(nil)
	s.wg.Wait()
	s.node.mu.Lock()
	delete(s.node.swarms, s.key)
	s.node.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.members {
		p.cancel()
	}
}
