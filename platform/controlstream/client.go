package controlstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// Pauses between attempts to reach the controller: the first, and the longest.
const (
	redialFirst = 50 * time.Millisecond
	redialMost  = time.Second
)

// ClientOptions configure a Client. Its functions must not block: they delay the next
// message.
type ClientOptions struct {
	Addr  string // HOST:PORT of the controller; all addresses of HOST are tried
	Token string
	Hello Hello
	Log   *slog.Logger // nil discards

	First func() Report // returns the full sync that begins a connection; may be nil
	Down  func(Update)  // applies the controller's updates, one after the other; may be nil

	// TLS returns the TLS configuration for each connection; nil: plain connections, for
	// tests and for one machine.
	TLS func() (*tls.Config, error)
	// Reread returns the current token for each connection; nil: Token is used.
	Reread func() (string, error)

	// Dial and Lookup replace TCP and the system's resolver; may be nil.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Lookup func(ctx context.Context, host string) ([]string, error)
}

// Client is a peer's end of its connection to the leading controller.
type Client struct {
	o ClientOptions

	// demand adds an activator's demand to a report when that is written, so it is
	// current. Set before Run.
	demand func(all, first bool, to *Report) (whole bool, heard uint64)
	hears  func(d Update, seq uint64)
	ended  func() // called when the connection has ended

	reportDue     newest.Signal // write a report now
	demandChanged newest.Signal // demand has changed
	state         atomic.Pointer[connection]

	mu  sync.Mutex
	out outbox // guarded by mu
}

type connection struct{ addr string }

// NewClient returns a Client; it starts nothing.
func NewClient(o ClientOptions) *Client {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Dial == nil {
		d := net.Dialer{Timeout: dialTimeout}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupHost
	}
	return &Client{o: o, reportDue: newest.NewSignal(), demandChanged: newest.NewSignal(), out: newOutbox()}
}

// Connected reports whether there is a connection now.
func (c *Client) Connected() bool { return c.state.Load() != nil }

// Leader is the HOST:PORT of the connected controller, "" while there is none.
func (c *Client) Leader() string {
	if s := c.state.Load(); s != nil {
		return s.addr
	}
	return ""
}

// Send queues a report without blocking. A later value of a subject replaces one that was
// not written yet. Without a connection the report waits for the next one, where First's
// values replace it.
func (c *Client) Send(u Report) {
	c.mu.Lock()
	c.out.put(u)
	c.mu.Unlock()
	c.reportDue.Set()
}

// Run keeps a connection to the leader until ctx ends; then it returns nil.
func (c *Client) Run(ctx context.Context) error {
	s := &leaderSearch{c: c, answers: make(chan answer), asking: map[string]bool{}, failed: map[string]string{}}
	for {
		to, addr := s.find(ctx)
		if to == nil {
			return nil
		}
		began := time.Now()
		err := c.runStream(ctx, to, addr)
		if ctx.Err() != nil {
			return nil
		}
		c.o.Log.Warn("the control stream has ended", "controller", addr, "error", err)
		if time.Since(began) > redialMost { // else two clients of one name may be replacing each other
			s.wait = redialFirst
		}
	}
}

// leaderSearch finds the leading controller. Run owns it.
type leaderSearch struct {
	c       *Client
	wait    time.Duration // pause before the next round
	answers chan answer
	open    int             // goroutines that will send to answers
	looking bool            // the name is being resolved
	asking  map[string]bool // addresses being dialled
	failed  map[string]string
	said    string
	saidAt  time.Time
}

// answer is the result of dialling an address, or, with an empty addr, of a lookup.
type answer struct {
	addr   string
	stream *stream
	addrs  []string
	err    error
}

// find dials all addresses of the name at once, and the leaders that other controllers
// name, until one leads. A silent address delays no other: a lost node's address stays
// silent for long, and the next controller leads before that. The stream is nil when ctx
// has ended.
func (s *leaderSearch) find(ctx context.Context) (*stream, string) {
	asks, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for ; s.open > 0; s.open-- { // the goroutines end with asks
			if a := <-s.answers; a.stream != nil {
				a.stream.end(nil)
			}
		}
		s.looking = false
		clear(s.asking)
		clear(s.failed)
		s.said, s.saidAt = "", time.Time{}
	}()
	next := time.NewTimer(s.pause())
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ""
		case <-next.C:
			s.lookup(asks)
			next.Reset(s.pause())
		case a := <-s.answers:
			s.open--
			switch {
			case a.stream != nil:
				return a.stream, a.addr
			case a.addr == "":
				s.looking = false
				s.onAnswer(a)
				for _, addr := range a.addrs {
					s.dialCandidate(asks, addr)
				}
			default:
				delete(s.asking, a.addr)
				s.onAnswer(a)
				if r, ok := errors.AsType[*refusal](a.err); ok && r.status == http.StatusMisdirectedRequest && r.leader != "" &&
					s.failed[r.leader] == "" {
					s.dialCandidate(asks, r.leader)
				}
			}
		}
	}
}

// pause returns the time until the next round: 0 at first, then jittered and doubled.
func (s *leaderSearch) pause() time.Duration {
	if s.wait == 0 {
		s.wait = redialFirst
		return 0
	}
	d := time.Duration((0.5 + rand.Float64()) * float64(s.wait))
	s.wait = min(2*s.wait, redialMost)
	return d
}

// lookup starts a round by resolving the controller's name.
func (s *leaderSearch) lookup(ctx context.Context) {
	if s.looking {
		return
	}
	s.looking = true
	s.open++
	go func() {
		addrs, err := s.c.addresses(ctx)
		s.answers <- answer{addrs: addrs, err: err}
	}()
}

// mostAsked bounds the addresses that are dialled at once.
const mostAsked = 32

func (s *leaderSearch) dialCandidate(ctx context.Context, addr string) {
	if s.asking[addr] || len(s.asking) == mostAsked {
		return
	}
	s.asking[addr] = true
	s.open++
	go func() {
		opened, err := s.c.openStream(ctx, addr)
		s.answers <- answer{addr: addr, stream: opened, err: err}
	}()
}

// sayEvery is the shortest time between two log lines of a search.
const sayEvery = 5 * time.Second

// onAnswer records the error of an address or of the lookup, and logs all errors if they
// have changed.
func (s *leaderSearch) onAnswer(a answer) {
	if a.addr == "" && a.err == nil {
		s.failed = map[string]string{} // a new round: the name may have other addresses now
		return
	}
	s.failed[a.addr] = a.err.Error()
	if len(s.asking) > 0 && a.addr != "" && s.said == "" {
		return // the first line waits for all addresses
	}
	var lines []string
	for addr, why := range s.failed {
		if addr != "" {
			why = addr + ": " + why
		}
		lines = append(lines, why)
	}
	slices.Sort(lines) // the same errors give the same line
	say := strings.Join(lines, "; ")
	if say == s.said || !s.saidAt.IsZero() && time.Since(s.saidAt) < sayEvery {
		return
	}
	s.said, s.saidAt = say, time.Now()
	s.c.o.Log.Warn("no control stream to a leading controller", "controller", s.c.o.Addr, "error", say)
}

// addresses resolves the controller's name to all its addresses.
func (c *Client) addresses(ctx context.Context) ([]string, error) {
	host, port, err := net.SplitHostPort(c.o.Addr)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) != nil {
		return []string{c.o.Addr}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := c.o.Lookup(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil {
		return nil, err
	}
	out := functions.ConvertAll(addrs, func(a string) string { return net.JoinHostPort(a, port) })
	return out, nil
}

// runStream reads and writes until the stream ends.
func (c *Client) runStream(ctx context.Context, to *stream, addr string) error {
	c.state.Store(&connection{addr}) // before the first update arrives
	defer c.state.Store(nil)
	if c.ended != nil {
		defer c.ended()
	}
	c.o.Log.Info("control stream to the controller opened", "controller", addr)
	stop := context.AfterFunc(ctx, func() { to.end(ctx.Err()) })
	defer stop()
	var writer sync.WaitGroup
	writer.Go(func() { to.end(c.writeReports(to)) })
	to.end(c.readUpdates(to))
	writer.Wait()
	return to.cause
}

func (c *Client) readUpdates(from *stream) error {
	known := models{}
	var parts Update // of an update that is not complete
	for {
		var f updateFrame
		if err := from.read(&f); err != nil {
			return err
		}
		if f.Ping {
			continue
		}
		parts.join(f.unpack(known, time.Now()))
		if f.More {
			continue
		}
		d := parts
		parts = Update{}
		if c.hears != nil {
			c.hears(d, f.Seq)
		} else if c.o.Down != nil {
			c.o.Down(d)
		}
	}
}

// demandPace is the shortest time between two frames for changes of demand alone: every
// request to a warm function changes its demand.
const demandPace = 50 * time.Millisecond

// writeReports writes the full sync and then each news, until the stream ends.
func (c *Client) writeReports(to *stream) error {
	if err := to.write(c.firstReport()); err != nil {
		return err
	}
	all := time.NewTicker(pingEvery)
	defer all.Stop()
	pace := time.NewTimer(demandPace)
	defer pace.Stop()
	demand := (<-chan struct{})(nil) // nil until demandPace is over
	for {
		var err error
		select {
		case <-to.ended:
			return nil
		case <-c.reportDue:
			err = c.writeNews(to, false)
		case <-demand:
			err = c.writeNews(to, false)
		case <-pace.C:
			demand = c.demandChanged
			continue
		case <-all.C:
			err = c.writeNews(to, true)
		}
		if err != nil {
			return err
		}
		demand = nil
		pace.Reset(demandPace)
	}
}

// firstReport is the first message: a full sync with the wakes, hints, health reports and
// first tokens that were still unwritten. First replaces all else that was pending. Reports
// sent meanwhile follow in the next message.
func (c *Client) firstReport() *reportFrame {
	var u, left Report
	c.mu.Lock()
	c.out.take(&left)
	c.mu.Unlock()
	if c.o.First != nil {
		u = c.o.First()
	}
	hello := c.o.Hello
	u.Hello = &hello
	u.Wakes, u.DemandHints = append(u.Wakes, left.Wakes...), append(u.DemandHints, left.DemandHints...)
	u.HealthReports, u.FirstTokens = append(u.HealthReports, left.HealthReports...), append(u.FirstTokens, left.FirstTokens...)
	var heard uint64
	if c.demand != nil {
		_, heard = c.demand(true, true, &u)
	}
	return u.pack(true, heard, time.Now())
}

// writeNews writes the pending news; with all also a report that says nothing, as a ping.
func (c *Client) writeNews(to *stream, all bool) error {
	var u Report
	c.mu.Lock()
	some := c.out.take(&u)
	c.mu.Unlock()
	whole, heard := false, uint64(0)
	if c.demand != nil {
		whole, heard = c.demand(all, false, &u)
		some = some || whole || heard > 0 || len(u.Demand) > 0 || u.RateLimits != nil
	}
	if !some && !all {
		return nil
	}
	return to.write(u.pack(whole, heard, time.Now()))
}

// outbox holds the news that is not written yet, the newest of each subject.
type outbox struct {
	wakes         newest.Map[functions.Name, Wake]
	demandHints   newest.Map[functions.Name, functions.Name]
	healthReports newest.Map[string, HealthReport]
	firstTokens   newest.Map[string, FirstToken]
	demand        newest.Map[functions.Name, activator.Demand]
	pods          newest.Map[string, Pod]
	applied       uint64
	node          *functions.Heartbeat
}

// maxPending bounds the subjects of each kind of news; more are dropped.
const maxPending = 1 << 16

func newOutbox() (o outbox) {
	o.wakes.Max, o.demandHints.Max, o.healthReports.Max = maxPending, maxPending, maxPending
	o.firstTokens.Max, o.demand.Max, o.pods.Max = maxPending, maxPending, maxPending
	return o
}

func (o *outbox) put(u Report) {
	for _, w := range u.Wakes {
		o.wakes.Put(w.Name, w)
	}
	for _, n := range u.DemandHints {
		o.demandHints.Put(n, n)
	}
	for _, a := range u.HealthReports {
		o.healthReports.Put(a.Replica, a)
	}
	for _, f := range u.FirstTokens {
		o.firstTokens.Put(f.ColdStart, f)
	}
	for _, d := range u.Demand {
		o.demand.Put(d.Name, d)
	}
	for _, p := range u.Pods {
		o.pods.Put(p.UID, p)
	}
	if u.Applied > 0 {
		o.applied = u.Applied
	}
	if u.Node != nil {
		o.node = u.Node
	}
}

// take moves all entries to the empty u. It reports whether there were any.
func (o *outbox) take(u *Report) bool {
	*u = Report{
		Wakes: o.wakes.Values(), DemandHints: o.demandHints.Values(), HealthReports: o.healthReports.Values(),
		FirstTokens: o.firstTokens.Values(),
		Demand:      o.demand.Values(), Pods: o.pods.Values(), Applied: o.applied, Node: o.node,
	}
	*o = newOutbox()
	return len(u.Wakes)+len(u.DemandHints)+len(u.HealthReports)+len(u.FirstTokens)+len(u.Demand)+len(u.Pods) > 0 || u.Applied > 0 ||
		u.Node != nil
}

// Certified returns ClientOptions.TLS for a folder of certificates, which is read again for
// each connection; nil, for plain connections, if folder is "".
func Certified(folder string) (func() (*tls.Config, error), error) {
	if folder == "" {
		return nil, nil
	}
	f, err := mtls.Open(folder)
	if err != nil {
		return nil, err
	}
	return func() (*tls.Config, error) {
		id, err := f.Identity()
		if err != nil {
			return nil, err
		}
		return mtls.Client(id, NameController), nil
	}, nil
}
