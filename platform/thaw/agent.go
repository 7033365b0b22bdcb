package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/enroll"
	"github.com/thaw-dev/thaw/platform/memlimit"
)

// runAgent is `thaw agent`: a node, its HTTP API, and the heartbeats to a server.
func runAgent(ctx context.Context, c cli.AgentConfig, stdout, stderr io.Writer) error {
	log := c.Open(stderr)
	defer log.Close()
	plan := memlimit.Apply(memlimit.BesideEngines, log.Logger)
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if c.Data, err = makeDataFolder(c.Data); err != nil {
		return err
	}
	identity, err := joinServer(ctx, c, log.Logger)
	if err != nil {
		return err
	}
	lending, err := peering(c.PeerAddr, c.Addr, c.Advertise, identity.PeerTLS(), c.Peer)
	if err != nil {
		return err
	}
	server := agent.NewJoin(c.Server, identity.ServerTLS(), identity.SetRemoved, log.Logger)
	config := agentConfig(c.Data, exe, c.NodeSettings, c.EngineSettings)
	config.ID, config.Machine, config.Orphan, config.KeepEngines = c.Name, c.Machine, c.OrphanTimeout.Std(), c.LeaveEngines
	config.Peering, config.Push, config.Log = lending, server.Push, log.Logger
	node, err := agent.Open(config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return &kit.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address: --addr HOST:PORT"}
	}
	address := c.Advertise
	if address == "" {
		if a, ok := listener.Addr().(*net.TCPAddr); ok && a.IP.IsUnspecified() {
			listener.Close()
			return &kit.Error{Exit: kit.ExitUsage, What: "--addr " + c.Addr + " says no address at which the server reaches this agent",
				Hint: "name it with --advertise https://HOST:PORT"}
		}
		address = "https://" + listener.Addr().String()
	}
	log.Info("agent", "name", node.ID(), "url", address, "server", c.Server, "lends", lending.URL)
	if c.LogFormat != "json" {
		fmt.Fprintf(stdout, "agent %s answers on %s\n", node.ID(), address)
	}
	parts, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	parts.Go(func() error { return identity.Run(ctx) })
	parts.Go(func() error {
		defer stop()
		return node.Serve(ctx, agent.ServeOptions{Listener: listener, URL: address, TLS: identity.AgentTLS(), Join: server, Bodies: plan.Bodies})
	})
	if err = parts.Wait(); errors.Is(err, agent.ErrRefused) {
		return &kit.Error{Exit: kit.ExitDenied, Err: err, Hint: joinHint}
	}
	return err
}

const joinHint = "thaw agents token on the server makes a join token, for --token-file"

// joinServer returns the identity of the agent, made at its first start with a join token.
func joinServer(ctx context.Context, c cli.AgentConfig, log *slog.Logger) (*enroll.Identity, error) {
	o := enroll.JoinOptions{Server: c.Server, ID: c.Name, Dir: filepath.Join(c.Data, "identity"), Log: log}
	if c.TokenFile != "" {
		token, err := kit.ReadToken(c.TokenFile)
		if err != nil {
			return nil, &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: joinHint}
		}
		o.Token = token
	}
	identity, err := enroll.Join(ctx, o)
	switch {
	case errors.Is(err, enroll.ErrNoToken):
		return nil, &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: joinHint}
	case errors.Is(err, enroll.ErrRefused):
		return nil, &kit.Error{Exit: kit.ExitDenied, Err: err, Hint: joinHint}
	}
	return identity, err
}
