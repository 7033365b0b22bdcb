package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodeloader"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// runNodeLoader is `thaw loader`: the loader of a node in a cluster.
func runNodeLoader(ctx context.Context, c cli.LoaderConfig, stdout, stderr io.Writer) error {
	log := c.Open(stderr)
	defer log.Close()
	token := ""
	if c.TokenFile != "" {
		var err error
		if token, err = kit.ReadToken(c.TokenFile); err != nil {
			return &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "key token of the Secret thaw-control-tls"}
		}
	}
	store, peerURL, err := openLoaderStore(c, log.Logger)
	if err != nil {
		return err
	}
	defer store.Close()
	memory, err := nodestore.Memory()
	if err != nil {
		log.Warn("the node's memory cannot be read", "error", err)
	}

	o := nodeloader.Options{
		Node: c.Node, Version: cli.Version, Dir: c.Store, Store: store, PeerURL: peerURL, Memory: memory, IdentifyPod: nodeloader.IdentifyPod,
		Private: true, Allow: c.Allow, Folders: c.Folder, PodBytes: c.PodBytes, PrefetchFor: c.AheadFor.Std(), Log: log.Logger,
	}
	if c.AllowLocal {
		o.IdentifyPod = nodeloader.IdentifyAny
	}
	var d *nodeloader.Daemon
	var client *controlstream.Client
	if c.Controller != "" {
		secure, err := controlstream.Certified(c.Certs)
		if err != nil {
			return &kit.Error{Exit: kit.ExitUsage, What: "--certs " + c.Certs, Err: err,
				Hint: "ca.crt, tls.crt and tls.key of the Secret thaw-control-tls"}
		}
		client = controlstream.NewClient(controlstream.ClientOptions{
			Addr: c.Controller, Token: token, TLS: secure, Reread: func() (string, error) { return kit.ReadToken(c.TokenFile) },
			Hello: controlstream.Hello{Kind: controlstream.KindNode, ID: c.Node, Version: cli.Version}, Log: log.Logger,
			First: func() controlstream.Report { return d.FullReport() }, Down: func(m controlstream.Update) { d.OnUpdate(m) },
		})
		o.Send, o.Connected = client.Send, client.Connected
	}
	d = nodeloader.New(o)
	metrics := telemetry.NewProcess(d.Samples, log.Samples, telemetry.BuildInfo(cli.Version))

	var listener net.Listener
	if c.Addr != "off" {
		if listener, err = net.Listen("tcp", c.Addr); err != nil {
			return &kit.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address, or none: --addr HOST:PORT or --addr off"}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup
	if listener != nil {
		parts.Go(func() {
			telemetry.Serve(ctx, listener, d.Handler(metrics.Handler()), log.Logger)
		})
	}
	if client != nil {
		parts.Go(func() {
			select { // the controller's updates need a running daemon
			case <-d.Ready():
				client.Run(ctx)
			case <-ctx.Done():
			}
		})
	}
	fmt.Fprintf(stdout, "loader of %s, store %s\n", c.Node, c.Store)
	err = d.Run(ctx)
	cancel()
	parts.Wait()
	if errors.Is(err, nodeloader.ErrInUse) {
		return &kit.Error{Exit: kit.ExitUnavailable, Err: err,
			Hint: "one loader per node: look for another DaemonSet, or a pod that does not end"}
	}
	return err
}

// openLoaderStore opens the node's store, and the address where it serves blocks to other
// nodes; without certificates it exchanges none.
func openLoaderStore(c cli.LoaderConfig, log *slog.Logger) (store *nodestore.Store, peerURL string, err error) {
	var peers *nodestore.Peering
	if c.Certs != "" {
		secure, err := peerTLS(c.Certs)
		if err != nil {
			return nil, "", err
		}
		advertise := ""
		if c.Advertise != "" {
			advertise = "https://" + net.JoinHostPort(c.Advertise, "0")
		}
		if peers, err = peering(c.PeerAddr, "", advertise, secure, c.Peer); err != nil {
			return nil, "", err
		}
		peerURL = peers.URL
	}
	store, err = nodestore.Open(nodestore.Options{Node: c.Node, Data: c.Store, Budget: c.Bytes, KeepPercent: c.KeepFree, Peering: peers,
		Copies: true, Private: true, Log: log})
	if err != nil {
		err = &kit.Error{Err: err, Hint: "--store DIR names a folder that this user may write"}
	}
	return store, peerURL, err
}
