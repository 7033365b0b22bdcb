package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// Options configure a Gateway. Activator must be set; zero values mean the default named
// here.
type Options struct {
	Activator *activator.Activator
	// Leader returns the HOST:PORT of the leading controller, "" while there is none.
	// Requests for its API are proxied to it. nil: its API is not served here.
	Leader func() string
	// LeaderTLS returns the configuration of connections to the leader; nil: these are plain.
	LeaderTLS func() (*tls.Config, error)
	// PublicAPI serves the leader's API to requests from outside the cluster too.
	PublicAPI bool
	// TrustedProxies are the addresses of load balancers whose X-Forwarded-Proto is
	// believed; empty: private and loopback addresses.
	TrustedProxies []netip.Prefix
	// CutGrace is the time after the drain deadline for streams to write their error frame;
	// 500 ms.
	CutGrace time.Duration
	// MaxBody bounds the body of an OpenAI API call; 32 MiB. Other bodies are unbounded, but
	// at most this much of one is read while its request is held.
	MaxBody int64
	// Bodies bounds the memory of the bodies of OpenAI API calls, and of what is read of
	// other held requests' bodies; 256 MiB, half of it for one key, team or address. The
	// rest of other bodies is read when it can be sent.
	Bodies *httpserver.Budget
	// Connections bounds the connections of clients; nil: at most a million.
	Connections *httpserver.Connections
	// HeadTimeout bounds a head from its first byte to its last; 10 s.
	HeadTimeout time.Duration
	// IdleTimeout closes a connection without a request; 200 s.
	IdleTimeout time.Duration
	// Dial opens a connection to a backend; nil dials TCP, for 5 s at most.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Draw returns a random number in [0, n), which picks a request's split; by default that
	// of math/rand/v2.
	Draw func(n int) int
	// Count counts a request by its target and status; nil: none is counted. The status
	// is 0 where the client left or the answer was broken off before its head.
	Count func(labels ...string)
	// Log gets errors; nil discards. The activator logs requests to functions.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.CutGrace = cmp.Or(max(o.CutGrace, 0), 500*time.Millisecond)
	o.HeadTimeout = cmp.Or(max(o.HeadTimeout, 0), 10*time.Second)
	o.IdleTimeout = cmp.Or(max(o.IdleTimeout, 0), 200*time.Second)
	o.MaxBody = cmp.Or(max(o.MaxBody, 0), 32<<20)
	o.Bodies = cmp.Or(o.Bodies, httpserver.NewBudget(256<<20, 128<<20))
	o.Connections = cmp.Or(o.Connections, httpserver.NewConnections(1<<20, 1<<20, nil))
	if o.Draw == nil {
		o.Draw = rand.IntN
	}
	if o.Count == nil {
		o.Count = func(...string) {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Gateway answers HTTP for a cluster. Its methods may be called concurrently.
type Gateway struct {
	o         Options
	act       *activator.Activator
	table     atomic.Pointer[table]
	openAI    *httpserver.NetHTTPHandler
	byModel   httpserver.Handler
	h1, h2    *http.Transport
	leader    *http.Transport // to the controller
	upstreams trackedConns
	pool      sync.Pool  // of *proxiedRequest
	buffers   bufferPool // of the proxies
	quiet     *log.Logger
	servers   [2]*http.Server         // public and private
	cut       context.CancelCauseFunc // ends the contexts of all requests

	swap sync.Mutex // orders calls of SetTable

	mu       sync.Mutex
	inFlight int           // requests being served
	drained  chan struct{} // made by waitForRequests; closed when inFlight reaches 0
}

// New returns a Gateway without routes; it starts nothing.
func New(o Options) *Gateway {
	o = o.withDefaults()
	g := &Gateway{o: o, act: o.Activator, upstreams: trackedConns{open: map[string]map[*trackedConn]struct{}{}}}
	g.byModel = browser.New(false, nil, nil).Wrap(g.act.Serve)
	g.openAI = httpserver.NewNetHTTPHandler(httpserver.Options{Handler: g.byModel, Authorize: g.authorize, MaxBody: o.MaxBody,
		Bodies: o.Bodies, Logger: o.Log})
	g.h1, g.h2, g.leader = g.transport(false), g.transport(true), g.transport(false)
	if o.LeaderTLS != nil {
		g.leader.DialContext = secureDial(g.leader.DialContext, o.LeaderTLS)
	}
	g.quiet = slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug) // net/http's errors about clients
	g.table.Store(compileTable(new(controlstream.Table), g.functionHandler))
	base, cut := context.WithCancelCause(context.Background()) // requests outlive Serve's caller: Shutdown drains them
	g.cut = cut
	g.servers = [2]*http.Server{g.server(base, g.Public()), g.server(base, g.Private())}
	return g
}

// transport returns the client for HTTP/1.1 backends, or for HTTP/2 without TLS.
func (g *Gateway) transport(h2 bool) *http.Transport {
	dial := g.o.Dial
	if dial == nil {
		d := net.Dialer{Timeout: 5 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
		dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			c, err := dial(ctx, addr)
			if err != nil {
				if _, ok := errors.AsType[*net.OpError](err); !ok {
					err = &net.OpError{Op: "dial", Net: "tcp", Err: err}
				}
				return nil, err
			}
			return g.upstreams.add(addr, c), nil
		},
		DisableCompression:     true, // bodies are passed through unchanged
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        60 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        oneWrite + maxHead,
		Protocols:              new(http.Protocols),
	}
	if h2 {
		t.Protocols.SetUnencryptedHTTP2(true)
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return t
}

// secureDial returns a dial whose connections are TLS, with the configuration of the moment.
func secureDial(dial func(ctx context.Context, network, addr string) (net.Conn, error),
	of func() (*tls.Config, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config, err := of()
		if err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		secure, err := mtls.Connect(ctx, conn, config)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: mtls.Explain(err)}
		}
		return secure, nil
	}
}

// functionHandler serves OpenAI API calls that were routed to a function by host, and
// /infer, which is one of them by its body.
func (g *Gateway) functionHandler(name functions.Name) httpserver.Handler {
	return browser.New(false, nil, nil).Wrap(func(req *httpserver.Request, res *httpserver.Response) {
		if req.Path == inferPath {
			req.Path = openai.InferPath(req.Body)
		}
		g.act.ServeAs(name, req, res)
	})
}

// authorize checks the head of an OpenAI API call. /infer is checked as a chat: which of
// them it is only its body tells.
func (g *Gateway) authorize(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
	if req.Path == inferPath {
		req.Path = openai.InferPath(nil)
		defer func() { req.Path = inferPath }()
	}
	return g.act.Authorize(req, res)
}

// SetTable routes all later requests by t. Requests being served keep their route. nil has
// no routes.
func (g *Gateway) SetTable(t *controlstream.Table) {
	g.swap.Lock()
	defer g.swap.Unlock()
	t = cmp.Or(t, new(controlstream.Table))
	g.act.SetAliases(aliases(t))
	g.table.Store(compileTable(t, g.functionHandler))
}

// DataPath returns the activator for the control stream, with an AbortThrough that also closes the
// gateway's connections.
func (g *Gateway) DataPath() DataPath { return DataPath{g.act, g} }

type DataPath struct {
	*activator.Activator
	g *Gateway
}

// AbortThrough aborts requests of every kind that go through the agent.
func (p DataPath) AbortThrough(agent string) {
	p.Activator.AbortThrough(agent)
	if addr, _ := upstream.SplitEndpoint(agent); addr != "" {
		p.g.upstreams.cut(addr)
	}
}

// Public answers requests from outside the cluster.
func (g *Gateway) Public() http.Handler { return &listenerHandler{g, false} }

// Private answers requests from inside the cluster, also for internal hosts.
func (g *Gateway) Private() http.Handler { return &listenerHandler{g, true} }

// Serve serves both listeners, which it owns, until Shutdown or until one of them fails.
// private may be nil. It is called once.
func (g *Gateway) Serve(public, private net.Listener) error {
	lns := []net.Listener{public, private}
	if private == nil {
		lns = lns[:1]
	}
	var serving errgroup.Group
	for i, ln := range lns {
		serving.Go(func() error {
			err := g.servers[i].Serve(clientListener{ln, g.o.Connections})
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			for _, s := range g.servers {
				s.Close()
			}
			return err
		})
	}
	return serving.Wait()
}

// Shutdown drains: held requests are refused with a retryable error; requests in flight go
// on until they end or ctx does. Then streams may write their error frame within CutGrace,
// and connections are closed. It returns nil if no request was cut, else ctx's error. It is
// called once.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.openAI.Drain()
	var over sync.WaitGroup
	over.Go(func() { g.act.Drain(ctx) })
	for _, s := range g.servers {
		over.Go(func() {
			if s.Shutdown(ctx) != nil {
				g.cut(httpserver.ErrDraining)
				g.waitForRequests(g.o.CutGrace)
				s.Close()
			}
		})
	}
	over.Wait()
	if t, ok := ctx.Deadline(); ok { // the servers do not track WebSockets
		g.waitForRequests(time.Until(t))
	}
	err := ctx.Err()
	g.mu.Lock()
	if g.inFlight > 0 && err == nil {
		err = context.DeadlineExceeded
	}
	g.mu.Unlock()
	g.cut(httpserver.ErrDraining)
	g.waitForRequests(g.o.CutGrace)
	g.h1.CloseIdleConnections()
	g.h2.CloseIdleConnections()
	g.leader.CloseIdleConnections()
	return err
}

// waitForRequests blocks until no request is being served, for at most that long.
func (g *Gateway) waitForRequests(most time.Duration) {
	g.mu.Lock()
	if g.inFlight == 0 {
		g.mu.Unlock()
		return
	}
	if g.drained == nil {
		g.drained = make(chan struct{})
	}
	landed := g.drained
	g.mu.Unlock()
	select {
	case <-landed:
	case <-time.After(most):
	}
}

func (g *Gateway) endRequest() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inFlight--; g.inFlight == 0 && g.drained != nil {
		close(g.drained)
		g.drained = nil
	}
}

func (g *Gateway) server(base context.Context, h http.Handler) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            g.o.HeadTimeout,
		IdleTimeout:                  g.o.IdleTimeout,
		MaxHeaderBytes:               maxHead,
		Protocols:                    p,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: time.Minute, PingTimeout: 15 * time.Second,
			MaxConcurrentStreams: 100, MaxReceiveBufferPerStream: 256 << 10, MaxReceiveBufferPerConnection: 512 << 10,
		},
		ErrorLog:    g.quiet,
		BaseContext: func(net.Listener) context.Context { return base },
		ConnState:   onState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

func writeError(w http.ResponseWriter, e *openai.Error) {
	h := w.Header()
	h.Set("X-Request-Id", openai.NewID())
	e.Header(func(name, value string) bool { h.Set(name, value); return true })
	w.WriteHeader(e.Status)
	w.Write(e.Body())
}
