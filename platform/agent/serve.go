package agent

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
)

// ServeOptions is where an agent that is a program of its own is reached, and whom it
// joins.
type ServeOptions struct {
	Listener net.Listener
	URL      string        // under which the server reaches it
	Token    string        // the join token
	Join     *Join         // whose Push is the agent's
	Drain    time.Duration // for requests it proxies when it is told to end; 0 is 10 s
}

// Serve is `thaw agent`: the node, its door, and its place at a server, until
// ctx ends or one of them fails. It is called once, in place of Run.
func (n *Node) Serve(ctx context.Context, f ServeOptions) error {
	if f.Drain == 0 {
		f.Drain = 10 * time.Second
	}
	f.Join.onPeers = n.SetPeers
	n.SetURL(f.URL, n.sameMachine(f.Join.server))
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	srv := httpserver.NewFiberServer(httpserver.Options{Handler: NewHandler(n.Agent, f.Token, engines).WithStore(n.store), Logger: n.log})

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	run(func() error { return srv.Serve(f.Listener) })
	run(func() error {
		<-ctx.Done()
		// What is on its way through may end first; then the engines do.
		grace, stop := context.WithTimeout(context.WithoutCancel(ctx), f.Drain)
		defer stop()
		if err := srv.Shutdown(grace); err != nil {
			n.log.Warn("requests were cut", "error", err)
		}
		return nil
	})
	run(func() error { return f.Join.Run(ctx) })
	// The agent ends its engines after the door is shut.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	agent := make(chan error, 1)
	go func() { agent <- n.Run(life) }()
	var err error
	select {
	case err = <-agent:
		cancel(err)
		all.Wait()
	case <-ctx.Done():
		all.Wait()
		end()
		err = <-agent
	}
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	return err
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
