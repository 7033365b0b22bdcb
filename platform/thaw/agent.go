package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/memory"
)

// runAgent is `thaw agent`: a node, its HTTP API, and the heartbeats to a server.
func runAgent(ctx context.Context, c cli.AgentConfig, stdout, stderr io.Writer) error {
	log := c.Open(stderr)
	defer log.Close()
	memory.Apply(memory.BesideEngines, log.Logger)
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	token, err := kit.ReadToken(c.TokenFile)
	if err != nil {
		return &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "copy DATA/join-token from the server and name it with --token-file"}
	}
	if c.Data, err = filepath.Abs(c.Data); err != nil {
		return err
	}
	lending, err := peering(c.PeerAddr, c.Addr, c.Advertise, token, c.Peer)
	if err != nil {
		return err
	}
	server := agent.NewJoin(c.Server, token, log.Logger)
	node, err := agent.Open(agent.Config{
		Name: c.Name, Machine: c.Machine, Version: cli.Version, Data: c.Data, Exe: exe, Orphan: c.OrphanTimeout.Std(),
		GPUs: gpuCount(c.GPUs), GPUMemory: c.GPUMemory, Memory: memorySize(c.Memory), Sleep: c.SleepMemory, Store: c.Store, KeepEngines: c.LeaveEngines, Warm: agent.WarmMode(c.Warm), Confine: agent.ConfineMode(c.Confine), RefuseVulnerable: c.Vulnerable == "refuse", EngineCaches: agent.CacheMode(c.Caches),
		Peering: lending, Environ: os.Environ, Push: server.Push, Log: log.Logger,
	})
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
			return &kit.Error{Exit: kit.ExitUsage, What: "--addr " + c.Addr + " says no address at which the server reaches this agent", Hint: "name it with --advertise http://HOST:PORT"}
		}
		address = "http://" + listener.Addr().String()
	}
	log.Info("agent", "name", node.ID(), "url", address, "server", c.Server, "lends", lending.URL)
	fmt.Fprintf(stdout, "agent %s answers on %s\n", node.ID(), address)
	return node.Serve(ctx, agent.ServeOptions{Listener: listener, URL: address, Token: token, Join: server})
}
