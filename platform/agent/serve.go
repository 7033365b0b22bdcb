package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/platform/enginehttp"
)

// ServeOptions are where an agent that is a program of its own serves, and which server it
// joins.
type ServeOptions struct {
	Listener net.Listener
	URL      string        // under which the server reaches it
	TLS      *tls.Config   // takes connections of the server only (enroll.Identity); nil is plain HTTP, for tests
	Join     *Join         // its Push is Options.Push of the agent
	Drain    time.Duration // bound on proxied requests at the end; 0 is 10 s
	Bodies   int64         // bytes for bodies of requests; 0 is 256 MiB
}

// cutGrace is the time after the drain deadline for streams to write their error frame.
const cutGrace = 500 * time.Millisecond

// Serve is `thaw agent`: it runs the node, its API and its heartbeats to a server until
// ctx ends or one of them fails. It is called once, in place of Run.
func (n *Node) Serve(ctx context.Context, f ServeOptions) error {
	f.Drain = cmp.Or(f.Drain, 10*time.Second)
	f.Bodies = cmp.Or(f.Bodies, 256<<20)
	f.Join.onPeers = n.SetPeers
	n.SetURL(f.URL, n.sameMachine(f.Join.server))
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	listener := f.Listener
	if f.TLS != nil {
		listener = tls.NewListener(listener, f.TLS)
	}
	bodies := httpserver.NewBudget(f.Bodies, f.Bodies) // without shares: all requests are the server's
	handler := httpserver.NewNetHTTPHandler(httpserver.Options{Handler: NewHandler(n.Agent, engines).WithStore(n.store),
		MaxBody: enginehttp.MaxBody, Bodies: bodies, Logger: n.log})
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx)) // requests outlive ctx by the drain
	defer cut(nil)
	srv := &http.Server{Handler: handler, BaseContext: func(net.Listener) context.Context { return base }, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}

	// The node ends its engines after the server has been shut down.
	serveCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error {
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	parts.Go(func() error {
		defer stop()
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.Drain)
		defer cancel()
		handler.Drain()
		if err := srv.Shutdown(grace); err != nil {
			n.log.Warn("requests were cut at the drain deadline", "error", err)
			cut(httpserver.ErrDraining)
			time.Sleep(cutGrace)
			srv.Close()
		}
		return nil
	})
	parts.Go(func() error { return f.Join.Run(ctx) })
	parts.Go(func() error { return n.Run(serveCtx) })
	if err := parts.Wait(); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// sameMachine reports whether a server is reached over loopback: then its
// activator reaches our engines directly.
func (n *Node) sameMachine(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	if u.Hostname() == "localhost" {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return ip != nil && ip.IsLoopback()
}
