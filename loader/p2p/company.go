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

// company is the nodes that stage one plan, as this one knows them.
type company struct {
	c      *Circle
	key    string
	first  map[string]int // number of a file's first block
	blocks int
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	members map[string]*member
	own     bits            // this node has them or is at them
	lent    map[int]string  // who lent a block that came
	waits   map[int]int     // blocks that are waited for at other nodes
	telling map[string]bool // nodes that have not answered the last telling, by URL
	view    int             // counts changes of who may own what
	owners  []ownership
}

// member is another node of the company.
type member struct {
	node    Node
	bits    bits
	all     bool // it has everything
	heard   time.Time
	refused int  // tellings in a row that were not let in
	gone    bool // it does not answer any more
	out     bool // it lent what was not the source's
	given   int  // blocks asked of it and not here yet
	end     context.CancelFunc
	life    context.Context // ends when it is given up
}

// ownership is an owner as of a view.
type ownership struct {
	view  int
	owner string
}

type bits []byte

func (b bits) has(i int) bool { return i>>3 < len(b) && b[i>>3]&(1<<(i&7)) != 0 }
func (b bits) set(i int)      { b[i>>3] |= 1 << (i & 7) }

func newCompany(c *Circle, key string, files []source.File, cancel context.CancelCauseFunc) *company {
	m := &company{c: c, key: key, first: make(map[string]int), cancel: cancel, members: make(map[string]*member), lent: make(map[int]string), waits: make(map[int]int), telling: make(map[string]bool), view: 1}
	// By name: listings may come in any order, and numbers mean the same on all
	// nodes.
	files = slices.SortedFunc(slices.Values(files), func(a, b source.File) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range files {
		m.first[f.Name] = m.blocks
		m.blocks += int((f.Size + c.o.Block - 1) / c.o.Block)
	}
	m.own = make(bits, (m.blocks+7)/8)
	m.owners = make([]ownership, m.blocks)
	return m
}

// number of a block; -1 for one that is not of the plan.
func (m *company) number(name string, index int) int {
	first, ok := m.first[name]
	if i := first + index; ok && index >= 0 && i < m.blocks {
		return i
	}
	return -1
}

func (p *member) here() bool           { return !p.out && !p.gone && p.node.URL != "" }
func (p *member) hasOrIsAt(i int) bool { return p.all || p.bits.has(i) }

// Mine reports whether this node is to bring a block from the source: nobody
// else has it or is at it, and of those that stage it is this node's turn.
// Whoever is told yes is at it from then on.
func (m *company) Mine(b loader.Block) bool {
	i := m.number(b.File.Name, b.Index)
	if i < 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own.has(i) {
		return true
	}
	for _, p := range m.members {
		if p.here() && p.hasOrIsAt(i) {
			return false
		}
	}
	return m.owner(i) == m.c.o.ID
}

// Take notes that this node is at a block; the others hear of it.
func (m *company) Take(b loader.Block) {
	if i := m.number(b.File.Name, b.Index); i >= 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.own.set(i)
	}
}

// owner is whose turn a block is; the caller holds mu.
func (m *company) owner(i int) string {
	if o := m.owners[i]; o.view == m.view {
		return o.owner
	}
	best, highest := m.c.o.ID, weigh(m.c.o.ID, m.key, i)
	for id, p := range m.members {
		// Who has everything brings nothing.
		if !p.here() || p.all {
			continue
		}
		if w := weigh(id, m.key, i); w > highest {
			best, highest = id, w
		}
	}
	m.owners[i] = ownership{m.view, best}
	return best
}

func weigh(id, key string, i int) uint64 {
	return xxh3.HashStringSeed(id+"\x00"+key, uint64(i))
}

// asked reports whether another node may wait here for a block: this node has
// it, is at it, or will be because it is its turn. A node that itself waits for
// another says no: two that wait for each other would wait long.
func (m *company) asked(name string, off int64) bool {
	i := m.number(name, int(off/m.c.o.Block))
	if i < 0 {
		return true // the loader says what is wrong with it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own.has(i) {
		return true
	}
	for _, p := range m.members {
		if p.here() && p.hasOrIsAt(i) {
			return false
		}
	}
	return m.owner(i) == m.c.o.ID && m.waits[i] == 0
}

// mine is what this node has or is at.
func (m *company) mine() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]byte(nil), m.own...)
}

// hear takes in what a node says of itself.
func (m *company) hear(n Node, w word) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.members[n.ID]
	stages := w.State == stateArriving && w.Block == m.c.o.Block && len(w.Bits) == len(m.own)
	if !stages && w.State != statePublished {
		if p != nil {
			m.drop(p)
			delete(m.members, n.ID)
		}
		return
	}
	if p == nil {
		p = &member{node: n}
		p.life, p.end = context.WithCancel(context.Background()) // drop and Leave end it
		m.members[n.ID] = p
		m.view++
	}
	if n.URL != "" && p.node.URL != n.URL {
		p.node.URL = n.URL
		m.view++
	}
	if p.gone {
		p.gone = false
		p.life, p.end = context.WithCancel(context.Background())
		m.view++
	}
	if all := w.State == statePublished; all != p.all {
		p.all = all
		m.view++
	}
	p.heard, p.refused, p.bits = time.Now(), 0, w.Bits
}

// missed notes that a node did not answer. One that refuses twice is gone; one
// that is only slow has until Silence.
func (m *company) missed(id string, refused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.members[id]
	if p == nil || p.gone {
		return
	}
	if p.refused++; !refused {
		p.refused = 0
	}
	if p.refused >= 2 || time.Since(p.heard) > m.c.o.Silence {
		m.c.o.Log.Info("a node does not answer, its blocks are brought by others", "node", id)
		p.gone = true
		m.drop(p)
	}
}

// drop ends what is waited for at a node; the caller holds mu.
func (m *company) drop(p *member) {
	p.end()
	m.view++
}

// run tells the others until the staging ends.
func (m *company) run(ctx context.Context) {
	t := time.NewTicker(m.c.o.Tell)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			m.tell(ctx)
		}
	}
}

// tell tells every node that is known what is here, and hears its answer. A
// node that has not answered the last telling yet is not told again. The
// result is closed when all have answered or failed.
func (m *company) tell(ctx context.Context) <-chan struct{} {
	nodes := make(map[string]Node) // by URL
	for _, n := range m.c.o.Nodes() {
		if n.ID != m.c.o.ID && n.URL != "" && n.URL != m.c.o.URL {
			nodes[n.URL] = n
		}
	}
	m.mu.Lock()
	for id, p := range m.members {
		if p.node.URL != "" {
			nodes[p.node.URL] = Node{ID: id, URL: p.node.URL}
		}
	}
	for at := range nodes {
		if m.telling[at] {
			delete(nodes, at)
		}
		m.telling[at] = true
	}
	m.mu.Unlock()
	say := word{ID: m.c.o.ID, URL: m.c.o.URL, State: stateArriving, Block: m.c.o.Block, Bits: m.mine()}
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, m.c.o.Silence)
			defer cancel()
			w, err := m.c.send(ctx, n, m.key, say)
			switch {
			case err != nil && n.ID != "":
				m.missed(n.ID, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
			case err == nil && w.ID != "" && w.ID != m.c.o.ID:
				m.hear(Node{ID: w.ID, URL: n.URL}, w)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.telling, n.URL)
		})
	}
	done := make(chan struct{})
	m.wg.Go(func() {
		defer close(done)
		all.Wait()
	})
	return done
}

// tries is how many nodes are asked for a block before the source is.
const tries = 3

// Fetch brings a block from another node.
func (m *company) Fetch(ctx context.Context, b loader.Block) (io.ReadCloser, uint64, bool) {
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
	until := time.Now().Add(m.c.o.Patience)
	for len(asked) < tries {
		p, node := m.pick(i, asked)
		if p == nil {
			break
		}
		body, sum, err := m.try(ctx, p, node, b, time.Until(until))
		if err == nil {
			return &borrowed{ReadCloser: body, m: m, i: i, p: p, left: b.Length}, sum, true
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errNotAtIt) && time.Until(until) > m.c.o.Tell {
			// It sees the company otherwise than this node; that passes.
			select {
			case <-time.After(m.c.o.Tell):
			case <-ctx.Done():
			}
			continue
		}
		asked[node.ID] = true
		m.c.o.Log.Debug("a node does not lend a block", "node", node.ID, "file", b.File.Name, "block", b.Index, "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own.set(i)
	return nil, 0, false
}

// pick is the node to ask for a block: one that has it or is at it, the one
// that is asked for the least; else the one whose turn it is. Nil when that is
// this node.
func (m *company) pick(i int, asked map[string]bool) (*member, Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if who := m.lent[i]; who != "" {
		// It came before, and is asked for again: it was not what the source
		// has. From now on the source is asked, and who lent it is not.
		if p := m.members[who]; p != nil && !p.out {
			p.out = true
			m.c.o.Log.Warn("a node lent bytes that are not the source's, or the disk lost them; it is not asked again", "node", who)
			m.drop(p)
		}
		return nil, Node{}
	}
	var best *member
	var node Node
	count := 0
	for id, p := range m.members {
		if !p.here() || asked[id] || !p.hasOrIsAt(i) {
			continue
		}
		switch {
		case best == nil || p.given < best.given:
			best, count = p, 1
		case p.given == best.given:
			if count++; rand.IntN(count) == 0 {
				best = p
			}
		}
	}
	if best == nil {
		if p := m.members[m.owner(i)]; p != nil && p.here() && !asked[p.node.ID] {
			best = p
		}
	}
	if best == nil {
		return nil, node
	}
	best.given++
	return best, best.node
}

var (
	errGone    = errors.New("the node is gone")
	errNotAtIt = errors.New("another node is at it")
)

// try asks one node, until it answers, is given up, or patience ends.
func (m *company) try(ctx context.Context, p *member, node Node, b loader.Block, wait time.Duration) (io.ReadCloser, uint64, error) {
	m.mu.Lock()
	life := p.life
	m.mu.Unlock()
	done := func() { m.mu.Lock(); p.given--; m.mu.Unlock() }
	if wait <= 0 || life.Err() != nil {
		done()
		return nil, 0, errGone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(errGone) })
	late := time.AfterFunc(wait+time.Second, func() { cancel(context.DeadlineExceeded) })
	body, sum, err := m.c.borrow(ctx, node, m.key, b, wait)
	late.Stop()
	if err != nil {
		stop()
		cancel(nil)
		done()
		return nil, 0, err
	}
	return &ending{ReadCloser: body, end: func() { stop(); cancel(nil); done() }}, sum, nil
}

// ending does what is due when a body is closed, once.
type ending struct {
	io.ReadCloser
	once sync.Once
	end  func()
}

func (e *ending) Close() error {
	err := e.ReadCloser.Close()
	e.once.Do(e.end)
	return err
}

// borrowed notes that a block is here when all of it was read.
type borrowed struct {
	io.ReadCloser
	m    *company
	i    int
	p    *member
	left int64
}

func (b *borrowed) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left == 0 && n > 0 {
		b.m.mu.Lock()
		b.m.own.set(b.i)
		b.m.lent[b.i] = b.p.node.ID
		b.m.mu.Unlock()
	}
	return n, err
}

// Leave ends the company. The others are told at their next telling.
func (m *company) Leave() {
	m.cancel(nil)
	m.wg.Wait()
	m.c.forget(m.key)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.members {
		p.end()
	}
}
