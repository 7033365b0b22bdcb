package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// How long until the next try to reach the controller: at first, and at most.
const (
	redialFirst = 50 * time.Millisecond
	redialMost  = time.Second
)

// ClientOptions of a Client. What is called must not block for long: what comes
// meanwhile waits.
type ClientOptions struct {
	Addr  string // HOST:PORT of the controller; all addresses of HOST are tried
	Token string
	Hello Hello
	Log   *slog.Logger // nil is silence

	First func() Up  // all there is to say, at the beginning of a connection; may be nil
	Down  func(Down) // hears the controller, one message after the other; may be nil

	// Dial and Lookup are a dialler's and a resolver's; nil: TCP, and the system's.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Lookup func(ctx context.Context, host string) ([]string, error)
}

// Client is a peer's end of its link to the controller that leads.
type Client struct {
	o ClientOptions

	// Of an activator: its demand is looked at when it is written, not when it is
	// told. Set before Run.
	demand func(all, first bool, to *Up) (whole bool, heard uint64)
	hears  func(d Down, seq uint64)

	ring  chan struct{} // capacity 1: there is something to write, now
	stir  chan struct{} // capacity 1: demand has changed
	state atomic.Pointer[connection]

	mu  sync.Mutex
	out outbox // under mu
}

type connection struct{ addr string }

// NewClient makes a client; it starts nothing.
func NewClient(o ClientOptions) *Client {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		d := net.Dialer{Timeout: shakeFor}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupHost
	}
	return &Client{o: o, ring: make(chan struct{}, 1), stir: make(chan struct{}, 1)}
}

// Connected reports whether there is a link now.
func (c *Client) Connected() bool { return c.state.Load() != nil }

// Leader is the HOST:PORT of the controller at the other end, "" while there is
// none.
func (c *Client) Leader() string {
	if s := c.state.Load(); s != nil {
		return s.addr
	}
	return ""
}

// Send says news. It does not block: what is said of a subject before it could be
// written is overtaken by what is said of it later, and without a link it waits
// for the next one, unless First says it anyway.
func (c *Client) Send(u Up) {
	c.mu.Lock()
	c.out.put(u)
	c.mu.Unlock()
	knock(c.ring)
}

func knock(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run keeps the link until ctx ends; then it returns nil.
func (c *Client) Run(ctx context.Context) error {
	wait := redialFirst
	said := ""
	for ctx.Err() == nil {
		began := time.Now()
		linked, err := c.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if linked && time.Since(began) > redialMost {
			wait = redialFirst
		}
		if linked || err.Error() != said { // not the same line with every try
			c.o.Log.Warn("no link to the controller", "controller", c.o.Addr, "error", err)
			said = err.Error()
		}
		if linked {
			said = ""
		}
		t := time.NewTimer(time.Duration((0.5 + rand.Float64()) * float64(wait)))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		wait = min(2*wait, redialMost)
	}
	return nil
}

// once finds the controller that leads and keeps the link to it until it breaks.
func (c *Client) once(ctx context.Context) (linked bool, err error) {
	host, port, err := net.SplitHostPort(c.o.Addr)
	if err != nil {
		return false, err
	}
	addrs := []string{host}
	if net.ParseIP(host) == nil {
		looking, cancel := context.WithTimeout(ctx, shakeFor)
		addrs, err = c.o.Lookup(looking, host)
		cancel()
		if err != nil {
			return false, err
		}
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	for i := range addrs {
		addrs[i] = net.JoinHostPort(addrs[i], port)
	}
	p, addr, err := c.find(ctx, addrs)
	if err != nil {
		return false, err
	}
	return true, c.keep(ctx, p, addr)
}

const (
	headStart = 50 * time.Millisecond // of one address before the next: most answer at once
	mostTried = 16                    // addresses in one go
)

// find asks at all addresses, and where those that do not lead send us, and takes
// the one that leads. One that does not answer holds the others up but a moment.
func (c *Client) find(ctx context.Context, addrs []string) (*pipe, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		addr string
		pipe *pipe
		err  error
	}
	answers := make(chan answer, mostTried)
	tried := map[string]bool{}
	open := 0
	ask := func(addr string, after time.Duration) {
		if tried[addr] || len(tried) == mostTried {
			return
		}
		tried[addr] = true
		open++
		go func() {
			t := time.NewTimer(after)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
				answers <- answer{addr, nil, ctx.Err()}
				return
			}
			p, err := c.dial(ctx, addr)
			answers <- answer{addr, p, err}
		}()
	}
	for i, addr := range addrs {
		ask(addr, time.Duration(i)*headStart)
	}
	var found answer
	var failed []error
	for ; open > 0; open-- { // also for those that have lost: they end with ctx
		a := <-answers
		switch {
		case a.err == nil && found.pipe == nil:
			found = a
			cancel()
		case a.err == nil:
			a.pipe.conn.Close()
		case found.pipe == nil:
			failed = append(failed, fmt.Errorf("%s: %w", a.addr, a.err))
			if r, ok := errors.AsType[*refusal](a.err); ok && r.status == http.StatusMisdirectedRequest && r.leader != "" {
				ask(r.leader, 0)
			}
		}
	}
	if found.pipe != nil {
		return found.pipe, found.addr, nil
	}
	slices.SortFunc(failed, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) }) // the same line for the same trouble
	return nil, "", cmp.Or(errors.Join(failed...), errors.New("the name has no address"))
}

func (c *Client) dial(ctx context.Context, addr string) (*pipe, error) {
	ctx, cancel := context.WithTimeout(ctx, shakeFor)
	defer cancel()
	conn, err := c.o.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	p, err := shake(ctx, conn, addr, c.o.Token)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

// keep speaks and listens until the link breaks.
func (c *Client) keep(ctx context.Context, p *pipe, addr string) error {
	c.state.Store(&connection{addr}) // before anything comes back
	defer c.state.Store(nil)
	c.o.Log.Info("linked to the controller", "controller", addr)
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	gone := make(chan struct{})
	var writer sync.WaitGroup
	var wrote error
	writer.Go(func() {
		wrote = c.writes(p, gone)
		p.conn.Close()
	})
	read := c.reads(p)
	close(gone)
	p.conn.Close()
	writer.Wait()
	if wrote != nil && !ended(wrote) {
		return wrote
	}
	return read
}

func (c *Client) reads(p *pipe) error {
	known := models{}
	for {
		var f downFrame
		if err := p.read(&f); err != nil {
			return err
		}
		d := f.unpack(known, time.Now())
		if c.hears != nil {
			c.hears(d, f.Seq)
		} else if c.o.Down != nil {
			c.o.Down(d)
		}
	}
}

// demandPace is how soon after one frame for a change of demand alone the next may
// follow: every request through a warm function changes its demand.
const demandPace = 50 * time.Millisecond

// writes says all there is, and then what is new, until the link ends.
func (c *Client) writes(p *pipe, gone <-chan struct{}) error {
	if err := p.write(c.first()); err != nil {
		return err
	}
	all := time.NewTicker(pingEvery)
	defer all.Stop()
	pace := time.NewTimer(demandPace)
	defer pace.Stop()
	stir := (<-chan struct{})(nil) // not before the pace allows it
	for {
		var err error
		select {
		case <-gone:
			return nil
		case <-c.ring:
			err = c.say(p, false)
		case <-stir:
			err = c.say(p, false)
		case <-pace.C:
			stir = c.stir
			continue
		case <-all.C:
			err = c.say(p, true)
		}
		if err != nil {
			return err
		}
		stir = nil
		pace.Reset(demandPace)
	}
}

// first is the first message. What is sent while it is put together is news. What
// was left over is said again, but for what First says better and what was about
// the other controller's table.
func (c *Client) first() *upFrame {
	var u, left Up
	c.mu.Lock()
	c.out.take(&left)
	c.mu.Unlock()
	if c.o.First != nil {
		u = c.o.First()
	}
	hello := c.o.Hello
	u.Hello = &hello
	u.Wakes, u.Nudges = append(u.Wakes, left.Wakes...), append(u.Nudges, left.Nudges...)
	u.Asks, u.Firsts = append(u.Asks, left.Asks...), append(u.Firsts, left.Firsts...)
	var heard uint64
	if c.demand != nil {
		_, heard = c.demand(true, true, &u)
	}
	return u.pack(true, heard, time.Now())
}

// say writes what there is, or that we live.
func (c *Client) say(p *pipe, all bool) error {
	var u Up
	c.mu.Lock()
	some := c.out.take(&u)
	c.mu.Unlock()
	whole, heard := false, uint64(0)
	if c.demand != nil {
		whole, heard = c.demand(all, false, &u)
		some = some || whole || heard > 0 || len(u.Demand) > 0
	}
	if !some {
		if !all {
			return nil
		}
		return p.write(nil)
	}
	return p.write(u.pack(whole, heard, time.Now()))
}

// outbox is news that is still to be written, one entry per subject.
type outbox struct {
	wakes   pile[functions.Name, Wake]
	nudges  pile[functions.Name, functions.Name]
	asks    pile[string, Ask]
	firsts  pile[string, First]
	demand  pile[functions.Name, Demand]
	pods    pile[string, Pod]
	applied uint64
	node    *functions.Heartbeat
}

func (o *outbox) put(u Up) {
	for _, w := range u.Wakes {
		o.wakes.put(w.Name, w)
	}
	for _, n := range u.Nudges {
		o.nudges.put(n, n)
	}
	for _, a := range u.Asks {
		o.asks.put(a.Replica, a)
	}
	for _, f := range u.Firsts {
		o.firsts.put(f.ColdStart, f)
	}
	for _, d := range u.Demand {
		o.demand.put(d.Name, d)
	}
	for _, p := range u.Pods {
		o.pods.put(p.UID, p)
	}
	if u.Applied > 0 {
		o.applied = u.Applied
	}
	if u.Node != nil {
		o.node = u.Node
	}
}

// take moves all of it to u, which is empty. It reports whether there was something.
func (o *outbox) take(u *Up) bool {
	*u = Up{
		Wakes: o.wakes.list, Nudges: o.nudges.list, Asks: o.asks.list, Firsts: o.firsts.list,
		Demand: o.demand.list, Pods: o.pods.list, Applied: o.applied, Node: o.node,
	}
	*o = outbox{}
	return len(u.Wakes)+len(u.Nudges)+len(u.Asks)+len(u.Firsts)+len(u.Demand)+len(u.Pods) > 0 || u.Applied > 0 || u.Node != nil
}

// pile is the newest of each subject, in the order in which they were first heard
// of. What has no room, because its subjects are without end, is left out.
type pile[K comparable, V any] struct {
	at   map[K]int
	list []V
}

const pileMost = 1 << 16

func (p *pile[K, V]) put(k K, v V) {
	if i, ok := p.at[k]; ok {
		p.list[i] = v
		return
	}
	if len(p.list) == pileMost {
		return
	}
	if p.at == nil {
		p.at = map[K]int{}
	}
	p.at[k] = len(p.list)
	p.list = append(p.list, v)
}
