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

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
)

// swarm is the nodes that stage one plan, as this one knows them.
type swarm struct {
	node   *Circle
	key    string
	first  map[string]int // number of a file's first block
	blocks int
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	members    map[string]*member
	bitmap     bitmap          // this node has them or is at them
	sentBy     map[int]string  // who lent a block that came
	waits      map[int]int     // blocks that are waited for at other nodes
	announcing map[string]bool // nodes that have not answered the last telling, by URL
	view       int             // counts changes of who may own what
	owners     []ownership
}

// member is another node of the company.
type member struct {
	peer       Peer
	blocks     bitmap
	all        bool // it has everything
	lastAnswer time.Time
	refused    int  // tellings in a row that were not let in
	gone       bool // it does not answer any more
	distrusted bool // it lent what was not the source's
	reads      int  // blocks asked of it and not here yet
	cancel     context.CancelFunc
	ctx        context.Context // ends when it is given up
}

// ownership is an owner as of a view.
type ownership struct {
	view  int
	owner string
}

type bitmap []byte

func (b bitmap) has(i int) bool { return i>>3 < len(b) && b[i>>3]&(1<<(i&7)) != 0 }
func (b bitmap) set(i int)      { b[i>>3] |= 1 << (i & 7) }

func newSwarm(c *Circle, key string, files []source.File, cancel context.CancelCauseFunc) *swarm {
	m := &swarm{node: c, key: key, first: make(map[string]int), cancel: cancel, members: make(map[string]*member), sentBy: make(map[int]string), waits: make(map[int]int), announcing: make(map[string]bool), view: 1}
	// By name: listings may come in any order, and numbers mean the same on all
	// nodes.
	files = slices.SortedFunc(slices.Values(files), func(a, b source.File) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range files {
		m.first[f.Name] = m.blocks
		m.blocks += int((f.Size + c.o.Block - 1) / c.o.Block)
	}
	m.bitmap = make(bitmap, (m.blocks+7)/8)
	m.owners = make([]ownership, m.blocks)
	return m
}

// number of a block; -1 for one that is not of the plan.
func (m *swarm) number(name string, index int) int {
	first, ok := m.first[name]
	if i := first + index; ok && index >= 0 && i < m.blocks {
		return i
	}
	return -1
}

func (p *member) usable() bool            { return !p.distrusted && !p.gone && p.peer.URL != "" }
func (p *member) hasOrFetches(i int) bool { return p.all || p.blocks.has(i) }

// Owns reports whether this node is to bring a block from the source: nobody
// else has it or is at it, and of those that stage it is this node's turn.
// Whoever is told yes is at it from then on.
func (m *swarm) Owns(b loader.Block) bool {
	i := m.number(b.File.Name, b.Index)
	if i < 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bitmap.has(i) {
		return true
	}
	for _, p := range m.members {
		if p.usable() && p.hasOrFetches(i) {
			return false
		}
	}
	return m.owner(i) == m.node.o.ID
}

// Claim notes that this node is at a block; the others hear of it.
func (m *swarm) Claim(b loader.Block) {
	if i := m.number(b.File.Name, b.Index); i >= 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.bitmap.set(i)
	}
}

// owner is whose turn a block is; the caller holds mu.
func (m *swarm) owner(i int) string {
	if o := m.owners[i]; o.view == m.view {
		return o.owner
	}
	best, highest := m.node.o.ID, rendezvousWeight(m.node.o.ID, m.key, i)
	for id, p := range m.members {
		// Who has everything brings nothing.
		if !p.usable() || p.all {
			continue
		}
		if w := rendezvousWeight(id, m.key, i); w > highest {
			best, highest = id, w
		}
	}
	m.owners[i] = ownership{m.view, best}
	return best
}

func rendezvousWeight(id, key string, i int) uint64 {
	return xxh3.HashStringSeed(id+"\x00"+key, uint64(i))
}

// mayServe reports whether another node may wait here for a block: this node has
// it, is at it, or will be because it is its turn. A node that itself waits for
// another says no: two that wait for each other would wait long.
func (m *swarm) mayServe(name string, off int64) bool {
	i := m.number(name, int(off/m.node.o.Block))
	if i < 0 {
		return true // the loader says what is wrong with it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bitmap.has(i) {
		return true
	}
	for _, p := range m.members {
		if p.usable() && p.hasOrFetches(i) {
			return false
		}
	}
	return m.owner(i) == m.node.o.ID && m.waits[i] == 0
}

// ownBitmap is what this node has or is at.
func (m *swarm) ownBitmap() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]byte(nil), m.bitmap...)
}

// receive takes in what a node says of itself.
func (m *swarm) receive(n Peer, w announcement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.members[n.ID]
	stages := w.State == stateArriving && w.Block == m.node.o.Block && len(w.Bits) == len(m.bitmap)
	if !stages && w.State != statePublished {
		if p != nil {
			m.cancelReads(p)
			delete(m.members, n.ID)
		}
		return
	}
	if p == nil {
		p = &member{peer: n}
		p.ctx, p.cancel = context.WithCancel(context.Background()) // drop and Leave end it
		m.members[n.ID] = p
		m.view++
	}
	if n.URL != "" && p.peer.URL != n.URL {
		p.peer.URL = n.URL
		m.view++
	}
	if p.gone {
		p.gone = false
		p.ctx, p.cancel = context.WithCancel(context.Background())
		m.view++
	}
	if all := w.State == statePublished; all != p.all {
		p.all = all
		m.view++
	}
	p.lastAnswer, p.refused, p.blocks = time.Now(), 0, w.Bits
}

// noAnswer notes that a node did not answer. One that refuses twice is gone; one
// that is only slow has until Silence.
func (m *swarm) noAnswer(id string, refused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.members[id]
	if p == nil || p.gone {
		return
	}
	if p.refused++; !refused {
		p.refused = 0
	}
	if p.refused >= 2 || time.Since(p.lastAnswer) > m.node.o.PeerTimeout {
		m.node.o.Log.Info("a node does not answer, its blocks are brought by others", "node", id)
		p.gone = true
		m.cancelReads(p)
	}
}

// cancelReads ends what is waited for at a node; the caller holds mu.
func (m *swarm) cancelReads(p *member) {
	p.cancel()
	m.view++
}

// announceLoop tells the others until the staging ends.
func (m *swarm) announceLoop(ctx context.Context) {
	t := time.NewTicker(m.node.o.AnnounceEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			m.announce(ctx)
		}
	}
}

// announce tells every node that is known what is here, and hears its answer. A
// node that has not answered the last telling yet is not told again. The
// result is closed when all have answered or failed.
func (m *swarm) announce(ctx context.Context) <-chan struct{} {
	nodes := make(map[string]Peer) // by URL
	for _, n := range m.node.o.Nodes() {
		if n.ID != m.node.o.ID && n.URL != "" && n.URL != m.node.o.URL {
			nodes[n.URL] = n
		}
	}
	m.mu.Lock()
	for id, p := range m.members {
		if p.peer.URL != "" {
			nodes[p.peer.URL] = Peer{ID: id, URL: p.peer.URL}
		}
	}
	for at := range nodes {
		if m.announcing[at] {
			delete(nodes, at)
		}
		m.announcing[at] = true
	}
	m.mu.Unlock()
	say := announcement{ID: m.node.o.ID, URL: m.node.o.URL, State: stateArriving, Block: m.node.o.Block, Bits: m.ownBitmap()}
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, m.node.o.PeerTimeout)
			defer cancel()
			w, err := m.node.sendAnnouncement(ctx, n, m.key, say)
			switch {
			case err != nil && n.ID != "":
				m.noAnswer(n.ID, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
			case err == nil && w.ID != "" && w.ID != m.node.o.ID:
				m.receive(Peer{ID: w.ID, URL: n.URL}, w)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.announcing, n.URL)
		})
	}
	done := make(chan struct{})
	m.wg.Go(func() {
		defer close(done)
		all.Wait()
	})
	return done
}

// maxPeersAsked is how many nodes are asked for a block before the source is.
const maxPeersAsked = 3

// Fetch brings a block from another node.
func (m *swarm) Fetch(ctx context.Context, b loader.Block) (io.ReadCloser, uint64, bool) {
	i := m.number(b.File.Name, b.Index)
	if i < 0 {
		return nil, 0, false
	}
	m.mu.Lock()
	m.waits[i]++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.waits[i]--; m.waits[i] == 0 {
			delete(m.waits, i)
		}
	}()
	asked := make(map[string]bool)
	until := time.Now().Add(m.node.o.BlockTimeout)
	for len(asked) < maxPeersAsked {
		p, node := m.choosePeer(i, asked)
		if p == nil {
			break
		}
		body, sum, err := m.fetchFrom(ctx, p, node, b, time.Until(until))
		if err == nil {
			return &trackedBody{ReadCloser: body, m: m, i: i, p: p, left: b.Length}, sum, true
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errNotFetching) && time.Until(until) > m.node.o.AnnounceEvery {
			// It sees the company otherwise than this node; that passes.
			select {
			case <-time.After(m.node.o.AnnounceEvery):
			case <-ctx.Done():
			}
			continue
		}
		asked[node.ID] = true
		m.node.o.Log.Debug("a node does not lend a block", "node", node.ID, "file", b.File.Name, "block", b.Index, "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bitmap.set(i)
	return nil, 0, false
}

// choosePeer is the node to ask for a block: one that has it or is at it, the one
// that is asked for the least; else the one whose turn it is. Nil when that is
// this node.
func (m *swarm) choosePeer(i int, asked map[string]bool) (*member, Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if who := m.sentBy[i]; who != "" {
		// It came before, and is asked for again: it was not what the source
		// has. From now on the source is asked, and who lent it is not.
		if p := m.members[who]; p != nil && !p.distrusted {
			p.distrusted = true
			m.node.o.Log.Warn("a node lent bytes that are not the source's, or the disk lost them; it is not asked again", "node", who)
			m.cancelReads(p)
		}
		return nil, Peer{}
	}
	var best *member
	var node Peer
	count := 0
	for id, p := range m.members {
		if !p.usable() || asked[id] || !p.hasOrFetches(i) {
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
		if p := m.members[m.owner(i)]; p != nil && p.usable() && !asked[p.peer.ID] {
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
	errNotFetching = errors.New("another node is at it")
)

// fetchFrom asks one node, until it answers, is given up, or patience ends.
func (m *swarm) fetchFrom(ctx context.Context, p *member, node Peer, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	m.mu.Lock()
	life := p.ctx
	m.mu.Unlock()
	done := func() { m.mu.Lock(); p.reads--; m.mu.Unlock() }
	if wait <= 0 || life.Err() != nil {
		done()
		return nil, 0, errGone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(errGone) })
	late := time.AfterFunc(wait+time.Second, func() { cancel(context.DeadlineExceeded) })
	body, sum, err := m.node.requestBlock(ctx, node, m.key, b, wait)
	late.Stop()
	if err != nil {
		stop()
		cancel(nil)
		done()
		return nil, 0, err
	}
	return &closeHook{ReadCloser: body, end: func() { stop(); cancel(nil); done() }}, sum, nil
}

// closeHook does what is due when a body is closed, once.
type closeHook struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

func (e *closeHook) Close() error {
	err := e.ReadCloser.Close()
	e.once.Do(e.end)
	return err
}

// trackedBody notes that a block is here when all of it was read.
type trackedBody struct {
	io.ReadCloser
	m    *swarm
	i    int
	p    *member
	left int64
}

func (b *trackedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left == 0 && n > 0 {
		b.m.mu.Lock()
		b.m.bitmap.set(b.i)
		b.m.sentBy[b.i] = b.p.peer.ID
		b.m.mu.Unlock()
	}
	return n, err
}

// Leave ends the company. The others are told at their next telling.
func (m *swarm) Leave() {
	m.cancel(nil)
	m.wg.Wait()
	m.node.removeSwarm(m.key)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.members {
		p.cancel()
	}
}
