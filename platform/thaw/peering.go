package main

import (
	"cmp"
	"net"
	"net/url"

	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/enroll"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/nodeloader"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// peering opens the address where this node serves blocks of checkpoints to others: with
// auto a free port of the host it listens on. With off it serves no blocks, and still uses
// those of others.
func peering(where, addr, advertise string, secure *p2p.TLS, others []string) (*nodestore.Peering, error) {
	if err := kit.CheckPeers(others); err != nil {
		return nil, err
	}
	p := &nodestore.Peering{TLS: secure, Nodes: others}
	if where == "off" {
		return p, nil
	}
	host := ""
	if where == "auto" {
		h, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, &kit.Error{Exit: kit.ExitUsage, What: "--addr " + addr + " is not HOST:PORT", Err: err}
		}
		where = net.JoinHostPort(h, "0")
	}
	if u, err := url.Parse(advertise); err == nil {
		host = u.Hostname()
	}
	l, err := net.Listen("tcp", where)
	if err != nil {
		return nil, &kit.Error{What: "cannot listen on " + where + " for other nodes", Err: err,
			Hint: "another address, or none: --peer-addr HOST:PORT or --peer-addr off"}
	}
	at := l.Addr().(*net.TCPAddr)
	if host == "" && at.IP.IsUnspecified() {
		// The port's address cannot be announced to others: this node only uses their blocks.
		l.Close()
		return p, nil
	}
	host = cmp.Or(host, at.IP.String())
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p.Listener, p.URL = l, "https://"+net.JoinHostPort(host, port)
	return p, nil
}

// peerTLS is the TLS with other nodes for the holder of a certificate in a folder: a loader's
// with loaders, an agent's with the nodes of its server.
func peerTLS(folder string) (*p2p.TLS, error) {
	const hint = "a folder with ca.crt, tls.crt and tls.key: DATA/identity of an agent, or what a loader mounts of the Secret thaw-control-tls"
	f, err := mtls.Open(folder)
	if err != nil {
		return nil, &kit.Error{Exit: kit.ExitUsage, What: "--certs " + folder, Err: err, Hint: hint}
	}
	id, err := f.Identity()
	switch {
	case err != nil:
		return nil, err
	case enroll.IsNode(id):
		return enroll.PeerTLS(f.Identity, nil), nil
	}
	return nodeloader.PeerTLS(f.Identity), nil
}
