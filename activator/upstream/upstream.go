package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Field is one header field. Names are sent as they are and come back in lower
// case.
type Field struct{ Name, Value string }

// Options of a Client; the zero value is ready.
type Options struct {
	// Dial opens a connection; nil dials TCP with DialTimeout.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// TLS returns the configuration of connections to an address, for requests with Secure;
	// they fail where it returns nil.
	TLS func(addr string) *tls.Config
	// DialTimeout bounds a dial, with the handshake; 5 s by default.
	DialTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept; 4 s by default,
	// because engines close theirs after 5.
	IdleTimeout time.Duration
	// MaxIdle is how many unused connections are kept per address; 256.
	MaxIdle int
	// Framed: the addresses are servers of ours, which answer each request once, so that
	// a connection may be used again at once (see peer.rest).
	Framed bool
	// MaxHead bounds the head of an answer in bytes; 32 KiB.
	MaxHead int
}

// Request is what goes to an engine. It must not change until Do returns.
type Request struct {
	Addr   string // host:port
	Host   string // of the host field; "" is Addr
	Secure bool   // over TLS, see Options.TLS
	Prefix string // of the path, for engines behind an agent: "/replicas/ID"
	Method string
	Path   string  // with its query; sent as it is
	Fields []Field // host and content-length are ours to add, and accept-encoding where it is not among them; framing fields are dropped
	Body   [][]byte
	Fresh  bool // on a new connection, for a request that was sent before
	// Bound is how long the engine may be silent, until the head and between
	// two reads of the body; 0 is no bound. Response.LimitSilence sets it anew. One of ten
	// minutes or more is up to a part in 64 late.
	Bound time.Duration
}

// The ways an exchange fails. errors.Is finds them; the cause is wrapped.
var (
	ErrDial      = errors.New("upstream: no connection")              // nothing was sent
	ErrNoAnswer  = errors.New("upstream: died before the first byte") // the request may have been seen
	ErrProtocol  = errors.New("upstream: answer is not HTTP")
	ErrCancelled = errors.New("upstream: cancelled")                        // wraps the context's cause
	ErrSilent    = errors.New("upstream: silent for longer than its bound") // or it does not read
	ErrCut       = errors.New("upstream: cut")                              // by AbortThrough; the cause in one of the above
	errClosed    = errors.New("upstream: client is closed")
)

// Error is a failed exchange.
type Error struct {
	Addr string
	Kind error // one of the above, or io.ErrUnexpectedEOF: died inside the body
	Err  error // the cause
	// Resent: it was sent twice, and the engine may have run it twice.
	Resent bool
}

func (e *Error) Error() string { return fmt.Sprintf("%v (%s): %v", e.Kind, e.Addr, e.Err) }

// Unwrap lets errors.Is find both the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// Client keeps connections to engines. Its methods may be called concurrently.
type Client struct {
	o Options

	unreported atomic.Int32 // peers with unsolicited bytes that no answer has reported yet

	mu     sync.Mutex
	peers  map[string]*peer // by address
	marked int              // of them, those that get one request per connection
	count  int              // of idle connections
	closed bool
	sweep  *time.Timer // runs while count > 0
}

// New makes a Client; it dials nothing.
func New(o Options) *Client {
	o.DialTimeout = cmp.Or(o.DialTimeout, 5*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 4*time.Second)
	o.MaxIdle = cmp.Or(o.MaxIdle, 256)
	o.MaxHead = cmp.Or(o.MaxHead, 32<<10)
	if o.Dial == nil {
		// Keepalives find a machine without power or network in twenty seconds.
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	return &Client{o: o, peers: map[string]*peer{}}
}

// Do sends r and returns when the head of the answer is there; 1xx answers are
// skipped, and a redirect to the same path but for a final slash is followed once.
// Cancelling ctx, also later while the body is read, closes the connection, which is how
// the engine learns that its client left. The answer must be closed. The error is an
// [*Error].
func (c *Client) Do(ctx context.Context, r *Request) (*Response, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	path, ok := slashRedirect(r, res)
	if !ok {
		return res, nil
	}
	res.Close()
	moved := *r
	moved.Path = path
	next, err := c.send(ctx, &moved)
	if err != nil {
		return nil, err
	}
	next.Unsolicited += res.Unsolicited
	next.FirstUnsolicited = next.FirstUnsolicited || res.FirstUnsolicited
	return next, nil
}

// Bounds on how often a request goes on another connection because nothing of it, or not
// all of it, was sent.
const (
	maxStale       = 8 // idle connections that had ended
	maxUnsolicited = 3 // connections with bytes that no request asked for
)

// send is Do without redirects.
func (c *Client) send(ctx context.Context, r *Request) (*Response, error) {
	var stale, unsolicited int
	reuse, resent, early := !r.Fresh, false, false
	for {
		if ctx.Err() != nil {
			return nil, &Error{Addr: r.Addr, Kind: ErrCancelled, Err: context.Cause(ctx)}
		}
		k, err := c.get(ctx, r.Addr, r.Secure, reuse)
		if err != nil {
			kind := ErrDial
			if ctx.Err() != nil {
				kind, err = ErrCancelled, context.Cause(ctx)
			} else if resent { // the connection before may have broken because the engine read this request
				kind = ErrNoAnswer
			}
			return nil, &Error{Addr: r.Addr, Kind: kind, Err: err}
		}
		res, err := k.roundTrip(ctx, r)
		if err == nil {
			if early && !k.early && res.Status < 400 {
				c.markUnsolicited(r.Addr) // it is no engine that answers before it has read the body
			}
			c.report(r.Addr, res)
			res.takeUnsolicited()
			return res, nil
		}
		k.exchange.end()
		k.closeConn()
		failed := k.failed(ErrNoAnswer, err)
		failed.Resent = resent
		switch {
		case ctx.Err() != nil:
			failed.Kind, failed.Err = ErrCancelled, context.Cause(ctx)
		case errors.Is(err, errStale):
			stale++
			reuse = stale < maxStale
			continue
		case errors.Is(err, errUnsolicited):
			c.markUnsolicited(r.Addr)
			if unsolicited++; unsolicited < maxUnsolicited {
				reuse = false
				continue
			}
			failed.Kind = ErrProtocol
		case errors.Is(err, errEarly):
			reuse, early = false, true
			continue
		case failed.Kind == ErrNoAnswer && !errors.Is(failed, ErrCut) && k.reused && !k.answered && !resent && time.Since(k.sentAt) < atOnce:
			// The engine closed it while it was idle: the request was never read.
			reuse, resent = false, true
			continue
		}
		return nil, failed
	}
}

// SplitEndpoint splits a URL into host:port and the prefix of its paths.
func SplitEndpoint(endpoint string) (addr, prefix string) {
	addr = strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
	if i := strings.IndexByte(addr, '/'); i >= 0 {
		addr, prefix = addr[:i], strings.TrimSuffix(addr[i:], "/")
	}
	return addr, prefix
}

// get returns an idle connection, or a new one.
func (c *Client) get(ctx context.Context, addr string, secure, reuse bool) (*conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClosed
	}
	if p := c.peers[addr]; p != nil && reuse {
		if k, rested := p.take(secure, c.o.Framed); k != nil {
			c.count--
			if rested {
				c.mu.Unlock()
				k.reused = true
				return k, nil
			}
			defer k.closeConn() // when the new one is there: what is known of the peer stays
		}
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.o.DialTimeout)
	defer cancel()
	nc, err := c.o.Dial(ctx, addr)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			c.unmark(addr)
		}
		return nil, err
	}
	k := newConn(c, addr, nc)
	if secure {
		var config *tls.Config
		if c.o.TLS != nil {
			config = c.o.TLS(addr)
		}
		if config == nil {
			nc.Close()
			return nil, fmt.Errorf("%s is to be reached over TLS, and no certificate of it is known: no agent of this server answers there", addr)
		}
		if err := k.transport.startTLS(ctx, config); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	p := c.peerAt(addr)
	p.conns[k] = struct{}{}
	k.lastByte = &p.lastByte
	k.watched = p.answers >= minAnswers && len(p.conns) > 1 && !secure && !c.o.Framed
	c.mu.Unlock()
	return k, nil
}

// AbortThrough ends every exchange with an endpoint's address as if the engine had died, for an engine that is known
// to be gone while its connections are still open. Idle connections to it are closed.
func (c *Client) AbortThrough(endpoint string) {
	addr, _ := SplitEndpoint(endpoint)
	c.mu.Lock()
	var all []*conn
	if p := c.peers[addr]; p != nil {
		all = slices.Collect(maps.Keys(p.conns))
		c.takeIdle(p)
	}
	c.mu.Unlock()
	for _, k := range all {
		k.abort()
	}
}

// put takes a connection back; it closes it where there are enough, or others wait for its
// end.
func (c *Client) put(k *conn) {
	k.idleSince = time.Now()
	c.mu.Lock()
	p := c.peerAt(k.addr)
	p.observe(k.firstByte)
	if c.closed || p.single || p.starved > 0 || len(p.idle) >= c.o.MaxIdle {
		c.mu.Unlock()
		k.closeConn()
		return
	}
	p.idle = append(p.idle, k)
	c.count++
	if c.count == 1 {
		if c.sweep == nil {
			c.sweep = time.AfterFunc(c.o.IdleTimeout, c.sweepIdle)
		} else {
			c.sweep.Reset(c.o.IdleTimeout)
		}
	}
	c.mu.Unlock()
}

// sweepIdle closes what was unused for the idle timeout and comes again when
// the next one is due.
func (c *Client) sweepIdle() {
	now := time.Now()
	next := c.o.IdleTimeout
	var old []*conn
	c.mu.Lock()
	for _, p := range c.peers {
		l, n := p.idle, 0 // oldest first
		for n < len(l) && now.Sub(l[n].idleSince) >= c.o.IdleTimeout {
			n++
		}
		old = append(old, l[:n]...)
		c.count -= n
		if p.idle = slices.Delete(l, 0, n); len(p.idle) > 0 {
			next = min(next, c.o.IdleTimeout-now.Sub(p.idle[0].idleSince))
		}
	}
	if c.count > 0 && !c.closed {
		c.sweep.Reset(max(next, time.Millisecond))
	}
	c.mu.Unlock()
	closeAll(old)
}

// CloseIdle closes the idle connections.
func (c *Client) CloseIdle() { c.drop(false) }

// Close closes the idle connections and refuses new requests; exchanges under
// way end by themselves and their connections are closed then.
func (c *Client) Close() { c.drop(true) }

func (c *Client) drop(closed bool) {
	c.mu.Lock()
	var idle []*conn
	for _, p := range c.peers {
		idle = append(idle, c.takeIdle(p)...)
	}
	c.closed = c.closed || closed
	if c.sweep != nil {
		c.sweep.Stop()
	}
	c.mu.Unlock()
	closeAll(idle)
}

// Response is the answer of one exchange. It belongs to one goroutine and is
// not to be touched after Close.
type Response struct {
	Status int
	Length int64   // of the body; -1: chunked, or until the connection ends
	Fields []Field // in the answer's order, names in lower case, framing fields left out
	// Unsolicited is how often bytes that no request asked for were found on connections
	// to the address since the answer before, and FirstUnsolicited that they are its
	// first: from now on each of its connections serves one request.
	Unsolicited      int
	FirstUnsolicited bool
	k                *conn     // nil after Close
	body             io.Reader // what Filter made of k's; nil: k's itself
}

// Header returns the first value of a field, named in lower case; "" if absent.
func (r *Response) Header(name string) string {
	for _, f := range r.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// Read reads the body. Of a chunked body it returns what is there, across
// chunks, without waiting for p to fill. io.EOF is the clean end; a connection
// that dies before it is an [*Error] of kind io.ErrUnexpectedEOF.
func (r *Response) Read(p []byte) (int, error) {
	if r.k == nil {
		return 0, io.ErrClosedPipe
	}
	if r.body != nil {
		return r.body.Read(p)
	}
	return r.k.Read(p)
}

// Filter has Read read from what f makes of the body, whose length is unknown then. It is
// called before the first Read.
func (r *Response) Filter(f func(body io.Reader) io.Reader) {
	r.body, r.Length = f(r.k), -1
}

// LimitSilence sets how long the engine may be silent from now on, until the next
// call; a Read that finds it longer silent fails with [ErrSilent], at most an
// eighth of d late.
func (r *Response) LimitSilence(d time.Duration) {
	if r.k != nil {
		r.k.transport.limitSilence(time.Now(), d, d/8)
	}
}

// Close ends the exchange. The connection is used again only if the body was
// read to its end. Closing again does nothing.
func (r *Response) Close() error {
	if k := r.k; k != nil {
		r.k = nil
		k.finish()
	}
	return nil
}

// slashRedirect returns the path of a redirect to the same host and port whose path
// differs from the request's by a final slash, as FastAPI sends it. Others are not
// followed: where an engine listens is the platform's to say.
func slashRedirect(r *Request, res *Response) (path string, ok bool) {
	if res.Status != 307 && res.Status != 308 || r.Prefix != "" {
		return "", false
	}
	from, err := url.ParseRequestURI(r.Path)
	if err != nil {
		return "", false
	}
	to, err := url.Parse(res.Header("location"))
	if err != nil || to.User != nil || to.Fragment != "" || to.Opaque != "" || to.RawQuery != from.RawQuery {
		return "", false
	}
	scheme, port := "http", "80"
	if r.Secure {
		scheme, port = "https", "443"
	}
	if to.Host != "" || to.Scheme != "" {
		host := to.Host
		if to.Port() == "" {
			host = net.JoinHostPort(to.Hostname(), port)
		}
		if to.Scheme != scheme && to.Scheme != "" || !strings.EqualFold(host, r.Addr) {
			return "", false
		}
	}
	a, b := from.EscapedPath(), to.EscapedPath()
	if a+"/" != b && a != b+"/" || b == "" {
		return "", false
	}
	return to.RequestURI(), true
}
