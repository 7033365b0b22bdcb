package enroll

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// PeerTLS is the TLS between the nodes of one server, which of is the identity of: the
// server's own node and its agents. removed reports whether the agent with a key, by its
// digest, has been removed; nil: none has.
func PeerTLS(of func() (*mtls.Identity, error), removed func(key string) bool) *p2p.TLS {
	return peerTLS(of, func(shown *tls.ConnectionState) (string, error) {
		id, err := nodeOf(shown)
		if err == nil && id != "" && removed != nil && removed(keyDigest(shown)) {
			return "", fmt.Errorf("the agent %s was removed from the server", id)
		}
		return id, err
	})
}

func peerTLS(of func() (*mtls.Identity, error), identify func(*tls.ConnectionState) (string, error)) *p2p.TLS {
	accept := func(shown tls.ConnectionState) error {
		_, err := identify(&shown)
		return err
	}
	return &p2p.TLS{
		Server: mtls.PeerServer(of, accept), Identify: identify,
		Connect: mtls.Connector(of, func(id *mtls.Identity) *tls.Config { return mtls.PeerClient(id, accept) }),
	}
}

// nodeOf returns the id of the agent whose certificate a connection shows, "" for the
// server's own node, whose id its certificate does not name.
func nodeOf(shown *tls.ConnectionState) (string, error) {
	name := mtls.Name(shown)
	if name == ServerName {
		return "", nil
	}
	id, ok := strings.CutSuffix(name, agentSuffix)
	if !ok {
		return "", fmt.Errorf("the certificate is that of %.80q, not of a node", name)
	}
	return id, nil
}

// IsNode reports whether an identity is that of an agent or of a server's own node.
func IsNode(id *mtls.Identity) bool {
	_, err := nodeOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{id.Cert.Leaf}})
	return err == nil
}

// keyDigest is the digest of the key of the certificate that a connection shows.
func keyDigest(shown *tls.ConnectionState) string {
	return digest(shown.PeerCertificates[0].RawSubjectPublicKeyInfo)
}

// PeerTLS is the TLS of the exchange of blocks with the other nodes of the server.
func (i *Identity) PeerTLS() *p2p.TLS {
	return PeerTLS(i.folder.Identity, func(key string) bool { return i.removed.Load() != nil && (*i.removed.Load())[key] })
}

// SetRemoved sets the digests of the keys of removed agents, as the server names them.
func (i *Identity) SetRemoved(keys []string) {
	i.removed.Store(new(functions.SetOf(keys, func(key string) string { return key })))
}

// PeerTLS is the TLS of the exchange of blocks between the server's own node and the agents
// that have joined.
func (s *Server) PeerTLS() *p2p.TLS {
	return peerTLS(func() (*mtls.Identity, error) { return s.ca.Identity(ServerName, s.o.Now()) }, s.identify)
}
