package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"

	"github.com/thaw-dev/thaw/activator/door"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/cli"
)

// join is `thaw agent`: a node, its HTTP face, and the heartbeats to a server.
func join(ctx context.Context, c cli.AgentConfig, stdout, stderr io.Writer) error {
	log := logger(stderr, c.LogFormat, c.Level())
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	token, err := agent.ReadToken(c.TokenFile)
	if err != nil {
		return &cli.Error{Exit: cli.ExitUsage, Err: err, Hint: "copy DATA/join-token from the server and name it with --token-file"}
	}
	server := agent.NewJoin(c.Server, token, log)
	node, err := agent.Open(agent.Config{
		Name: c.Name, Version: cli.Version, Data: c.Data, Exe: exe, Orphan: c.Orphan.Std(),
		GPUs: count(c.GPUs), GPUMemory: c.GPUMemory, Memory: size(c.Memory), Store: c.Store, Leave: c.Leave,
		Environ: os.Environ, Push: func(hb functions.Heartbeat) { server.Push(hb) }, Log: log,
	})
	if err != nil {
		return err
	}
	engines := upstream.New(upstream.Options{})
	defer engines.Close()
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return &cli.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address: --addr HOST:PORT"}
	}
	address := c.Advertise
	if address == "" {
		address = "http://" + listener.Addr().String()
	}
	node.Reach(address, sharesMachine(c.Server))
	front := door.NewFiber(door.Options{Handler: agent.NewDoor(node.Agent, token, engines).Serve, Logger: log})

	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	var parts sync.WaitGroup
	part := func(f func(context.Context) error) {
		parts.Go(func() {
			if err := f(life); err != nil {
				end(err)
			}
		})
	}
	part(node.Run)
	part(server.Run)
	part(func(context.Context) error { return front.Serve(listener) })
	log.Info("agent", "name", node.ID(), "url", address, "server", c.Server)
	fmt.Fprintf(stdout, "agent %s answers on %s\n", node.ID(), address)

	select {
	case <-ctx.Done():
	case <-life.Done():
	}
	cut, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	front.Shutdown(cut)
	cause := context.Cause(life)
	end(nil)
	parts.Wait()
	return ended(cause)
}

// sharesMachine reports whether the server is reached over loopback: then its
// activator reaches our engines there too, with no agent in between.
func sharesMachine(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && a.IsLoopback()
}
